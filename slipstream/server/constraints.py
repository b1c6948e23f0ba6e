"""What an answer in a conversation must be: the form that was asked for, or calls of tools, after its reasoning."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from slipstream.models.chat_format import CALL_END, CALL_START
from slipstream.request import ConstraintKind, OutputConstraint, ReasoningMarkers, RequestError
from slipstream.sampling.grammar import inline_schema
from slipstream.server.assistant_text import Reasoning
from slipstream.server.conversation import ChatText
from slipstream.server.served_model import ServedModel
from slipstream.server.wire.tools import ToolUse

# Fields of OpenAI's that speak of the answer's text, beside which tools may be called.
FORMATS = ("response_format", "text.format")


def answer_constraint(asked: OutputConstraint | None, written: ChatText, model: ServedModel) -> OutputConstraint | None:
    """The constraint of an answer to `written`; None where it may be anything.

    Raises:
        RequestError: a form of the whole output beside tools that may, or must, be called.
    """
    constraint = _with_calls(asked, written.tools)
    if constraint is None or written.reasoning is Reasoning.NONE:
        return constraint
    markers = ReasoningMarkers(*model.think_ids(), written.reasoning is Reasoning.OPEN)
    return dataclasses.replace(constraint, reasoning=markers)


def _with_calls(asked: OutputConstraint | None, tools: ToolUse) -> OutputConstraint | None:
    if not tools.may_call or (asked is None and not tools.must_call):
        return asked
    if asked is not None and asked.parameter not in FORMATS:
        raise RequestError(
            f"{asked.parameter} says what the whole output must be, which leaves no place for tool calls; leave the "
            "tools out, or send tool_choice 'none'",
            asked.parameter,
        )
    lines = calls_grammar(tools)
    if asked is None or tools.must_call:  # an answer of nothing but calls has no text that a format could shape
        return OutputConstraint(ConstraintKind.GRAMMAR, "\n".join(["start: calls", *lines]), "tools")
    document = f"document: %json {inline_schema(json.loads(asked.text))}"
    text = "\n".join(["start: document | calls", document, *lines])
    return OutputConstraint(ConstraintKind.GRAMMAR, text, asked.parameter)


def calls_grammar(tools: ToolUse) -> list[str]:
    """Rules of Lark, the first of them `calls`: calls as models and `ToolCallReader` write and read them."""
    functions = [item["function"] for item in tools.functions]
    if tools.must_call:
        functions = [function for function in functions if function["name"] in tools.must_call]
    calls = "call" if tools.max_calls == 1 else 'call ("\\n" call)*'
    lines = [f"calls: {calls}", f"call: {' | '.join(f'call_{index}' for index in range(len(functions)))}"]
    for index, function in enumerate(functions):
        opening = f'{CALL_START}\n{{"name": {json.dumps(function["name"])}, "arguments": '
        closing = f"}}\n{CALL_END}"
        lines.append(f"call_{index}: {json.dumps(opening)} arguments_{index} {json.dumps(closing)}")
        lines.append(f"arguments_{index}: %json {inline_schema(_object_schema(function['parameters']))}")
    return lines


def _object_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """Arguments are an object whatever else the schema says, or leaves out."""
    return parameters if "type" in parameters else {"type": "object", **parameters}
