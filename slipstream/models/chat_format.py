"""ChatFormat: what a chat template shows of how its model thinks and calls tools."""

from __future__ import annotations

import re
from dataclasses import dataclass

THINK_START, THINK_END = "<think>", "</think>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Read off the template's source.

    Attributes:
        reads_tools: it writes the tools that it is given into the prompt.
        writes_json_calls: its tool calls are JSON between <tool_call> and </tool_call> (Hermes, Qwen, SmolLM).
        has_reasoning: its model thinks between <think> and </think>.
        switches_thinking: `enable_thinking` decides whether it does. takes_effort: it reads `reasoning_effort`.
    """

    reads_tools: bool
    writes_json_calls: bool
    has_reasoning: bool
    switches_thinking: bool
    takes_effort: bool

    @classmethod
    def of(cls, source: str) -> ChatFormat:
        return cls(
            reads_tools=re.search(r"\btools\b", source) is not None,
            # <tool_call> may also hold XML of <function=…>, which is another format.
            writes_json_calls=CALL_START in source and "<function=" not in source,
            has_reasoning=THINK_END in source,
            switches_thinking="enable_thinking" in source,
            takes_effort="reasoning_effort" in source,
        )
