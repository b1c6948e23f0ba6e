"""Conversation: what a chat request says, whichever API it came by, and the prompt that is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.models.chat_format import CALL_END, CALL_START, THINK_END, THINK_START, ChatFormat
from slipstream.models.chat_template import ChatTemplate
from slipstream.request import RequestError
from slipstream.server.assistant_text import AssistantReader, Reasoning
from slipstream.server.wire.fields import shortened
from slipstream.server.wire.tools import NO_TOOLS, ToolUse

# Variables that the server itself gives to templates.
RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
EFFORTS_OFF = ("none", "minimal")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that the prompt depends on.

    Attributes:
        messages: as chat templates read them: role, content, tool_calls, reasoning_content, …
        variables: further ones for the template. effort: how much the model should think, in OpenAI's words.
        thinks: whether the model should think at all; None leaves it to the template.
    """

    messages: list[dict[str, Any]]
    tools: ToolUse = NO_TOOLS
    variables: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    thinks: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatText:
    """A conversation written out.

    Attributes:
        reasoning: where the model's answer to it begins.
    """

    text: str
    reasoning: Reasoning
    tools: ToolUse

    def reader(self) -> AssistantReader:
        """Splits one answer to it."""
        return AssistantReader(self.reasoning, reads_tools=self.tools.may_call, max_calls=self.tools.max_calls)


def write_out(template: ChatTemplate, conversation: Conversation, *, opens_turn: bool = True) -> ChatText:
    """The prompt's text, up to the opening of the assistant's turn with `opens_turn`. Raises RequestError."""
    chat_format = template.format
    variables = _variables(chat_format, conversation)
    messages: Sequence[Mapping[str, Any]] = conversation.messages
    tools = conversation.tools
    if not chat_format.reads_tools:
        messages = with_tools_as_text(messages, tools.functions)
    elif tools.functions:
        if not chat_format.writes_json_calls:
            raise RequestError(
                "this model writes tool calls in a form that this server does not read; it reads JSON between "
                f"{CALL_START} and {CALL_END}",
                "tools",
                "unsupported_parameter",
            )
        variables["tools"] = list(tools.functions)
    text = template.render(messages, add_generation_prompt=opens_turn, **variables)
    return ChatText(text, _reasoning(chat_format, text), tools)


def _variables(chat_format: ChatFormat, conversation: Conversation) -> dict[str, Any]:
    for name in conversation.variables:
        if name in RESERVED:
            raise RequestError(f"chat_template_kwargs must not set {name!r}", "chat_template_kwargs")
        if not name.isidentifier():
            raise RequestError(
                f"chat_template_kwargs: {shortened(name)!r} is no name of a variable", "chat_template_kwargs"
            )
    variables = dict(conversation.variables)
    thinks, effort = conversation.thinks, conversation.effort
    if effort is not None:
        if chat_format.takes_effort:
            variables.setdefault("reasoning_effort", effort)
        elif chat_format.switches_thinking:
            thinks = effort not in EFFORTS_OFF if thinks is None else thinks
        elif effort not in EFFORTS_OFF or chat_format.has_reasoning:
            raise RequestError(
                f"this model's chat template has no place for reasoning_effort {shortened(effort)!r}; leave it out",
                "reasoning_effort",
                "unsupported_parameter",
            )
    if thinks is not None and chat_format.switches_thinking:
        variables.setdefault("enable_thinking", thinks)
    return variables


def _reasoning(chat_format: ChatFormat, prompt: str) -> Reasoning:
    end = prompt.rstrip()
    if not chat_format.has_reasoning or end.endswith(THINK_END):
        return Reasoning.NONE
    return Reasoning.OPEN if end.endswith(THINK_START) else Reasoning.POSSIBLE


TOOL_PROMPT = (
    "You may call functions. They are described here, one JSON object a line:\n<tools>\n{tools}\n</tools>\n\n"
    "To call one, write a JSON object with its name and arguments between tags, one for each call:\n"
    f'{CALL_START}\n{{{{"name": "the function", "arguments": {{{{"argument": "value"}}}}}}}}\n{CALL_END}'
)


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The same conversation for a template that knows nothing of tools: they, their calls and results are text.

    Results become a user's message between <tool_response> tags, as Qwen's template writes them.
    """
    plain: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            plain.append({"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"})
            continue
        calls = [
            f"{CALL_START}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CALL_END}"
            for call in message.get("tool_calls", ())
        ]
        rest = {name: value for name, value in message.items() if name not in ("tool_calls", "content")}
        plain.append({**rest, "content": "\n".join(filter(None, [message["content"], *calls]))})
    if functions:
        described = TOOL_PROMPT.format(
            tools="\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
        )
        if plain and plain[0]["role"] == "system":
            plain[0] = {**plain[0], "content": f"{plain[0]['content']}\n\n{described}"}
        else:
            plain.insert(0, {"role": "system", "content": described})
    return plain
