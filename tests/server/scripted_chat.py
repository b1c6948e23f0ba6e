"""A model that answers each conversation with a text that the test chose; a chat template with tools and thinking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from engine_helpers import EOS, TOKENIZER, VOCAB_SIZE, byte_tokens, printable_logits

from slipstream.models.chat_template import ChatTemplate
from slipstream.simulation.scripted import Logits

TEMPLATE = ChatTemplate(
    "{% if tools %}<|start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    "Answer with <tool_call> and </tool_call>.<|end|>\n{% endif %}"
    "{% for message in messages %}<|start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
START = TOKENIZER.encode("<|start|>", add_special_tokens=False)[0]
OPENING = TOKENIZER.encode("<|start|>assistant\n", add_special_tokens=False)
NOT_THINKING = TOKENIZER.encode("<think></think>", add_special_tokens=False)


class ScriptedReplies:
    """Logits that answer the last message with the reply of the first key that it holds, one token a byte, then EOS;
    what is no conversation is continued with printable noise."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        self._replies = {key: byte_tokens(text) for key, text in replies.items()}
        self._noise = printable_logits()
        self._known: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, prefix: Sequence[int]) -> Logits:
        turn = next((place for place in range(len(prefix) - 1, -1, -1) if prefix[place] == START), None)
        if turn is None or list(prefix[turn : turn + len(OPENING)]) != OPENING:
            return self._noise(prefix)
        said = list(prefix[turn + len(OPENING) :])
        if said[: len(NOT_THINKING)] == NOT_THINKING:
            said = said[len(NOT_THINKING) :]
        reply = self._reply(tuple(prefix[:turn]))
        token = reply[len(said)] if len(said) < len(reply) else EOS
        logits = np.full(VOCAB_SIZE, -5.0)
        logits[(token + 1) % 128] = 3.0
        logits[token] = 5.0
        return logits

    def _reply(self, conversation: tuple[int, ...]) -> list[int]:
        if conversation not in self._known:
            last = TOKENIZER.decode(conversation, skip_special_tokens=False).rsplit("<|start|>", 1)[1]
            self._known[conversation] = next(tokens for key, tokens in self._replies.items() if key in last)
        return self._known[conversation]


OPEN_TEMPLATE = ChatTemplate(
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "<|start|>assistant\n<think>\n{# the model goes on from here, and writes </think> itself #}"
)

CALLS = (
    "I look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
THOUGHT = "<think>\nA <tool_call> here is no call.</think>\n\nAnswer: 42."
THOUGHT_CALL = '<think>Hm.</think><tool_call>{"name": "time", "arguments": {"zone": "UTC"}}</tool_call>'
BROKEN = "<tool_call>this is no call</tool_call> so it is text"
REPLIES = {
    "weather": CALLS,
    "think": THOUGHT,
    "both": THOUGHT_CALL,
    "broken": BROKEN,
    "sunny": "It is sunny.",
    "hello": "Hello you! 日本",
    "endless": "x" * 500,
}
MESSAGES: dict[str, list[Any]] = {key: [{"role": "user", "content": f"Please {key}"}] for key in REPLIES}
FUNCTIONS = [
    {
        "name": "weather",
        "description": "How it is outside.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"name": "time", "description": "What the clock says.", "parameters": {"type": "object", "properties": {}}},
]
TOOLS: list[Any] = [{"type": "function", "function": function} for function in FUNCTIONS]
