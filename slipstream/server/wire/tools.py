"""Tools as clients describe them, and which of them the model may call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.request import RequestError
from slipstream.server.body import LARGE_BODY, check_counts
from slipstream.server.wire.fields import shortened
from slipstream.server.wire.objects import OpenObject

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class FunctionDefinition(OpenObject):
    """What may be called; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(OpenObject):
    """A tool of `/v1/chat/completions`."""

    type: str
    function: FunctionDefinition | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools in a conversation.

    Attributes:
        functions: in the form that chat templates take, `{"type": "function", "function": {…}}`.
        may_call: whether tool calls are looked for in what the model writes.
        max_calls: calls that are given at most; None for all.
        strict_names: functions whose arguments were to be held to their schema, and are not: of answers that may be
            text the arguments are what the model writes.
        must_call: functions of which at least one call is forced, its arguments held to the schema; empty for none.
    """

    functions: tuple[dict[str, Any], ...] = ()
    may_call: bool = False
    max_calls: int | None = None
    strict_names: tuple[str, ...] = ()
    must_call: frozenset[str] = frozenset()


NO_TOOLS = ToolUse()


def tool_use(
    definitions: Sequence[FunctionDefinition], *, choice: str, parallel: bool, parameter: str = "tools"
) -> ToolUse:
    """The tools, where `choice` is `none`, `auto`, `required` or the name of one.

    Raises:
        RequestError: a definition without a usable name, or a choice of a function that is not there.
    """
    if len(definitions) > MAX_TOOLS:
        raise RequestError(f"{parameter} takes at most {MAX_TOOLS} tools, got {len(definitions)}", parameter)
    names = [definition.name for definition in definitions]
    for name in names:
        if NAME.fullmatch(name) is None:
            raise RequestError(
                f"{parameter}: {shortened(name)!r} is no name of a function; use letters, digits, '_', '-' and '.'",
                parameter,
            )
        if names.count(name) > 1:
            raise RequestError(f"{parameter}: two functions are called {name!r}", parameter)
    if choice == "required" and not names:
        raise RequestError("tool_choice is 'required', but there are no tools to call", "tool_choice")
    if choice not in ("none", "auto", "required", *names):
        raise RequestError(f"tool_choice names {shortened(choice)!r}, which is none of the tools", "tool_choice")
    if choice == "none" or not definitions:
        return NO_TOOLS
    functions = tuple(
        {
            "type": "function",
            "function": {
                "name": definition.name,
                "description": definition.description or "",
                "parameters": definition.parameters or {"type": "object", "properties": {}},
            },
        }
        for definition in definitions
    )
    strict = tuple(definition.name for definition in definitions if definition.strict)
    must_call = frozenset[str]() if choice == "auto" else frozenset(names if choice == "required" else [choice])
    return ToolUse(functions, True, None if parallel else 1, () if must_call else strict, must_call)


def arguments_of(text: str, where: str) -> Any:
    """Arguments of a call that the model made before, as the object that templates write out."""
    if len(text) > LARGE_BODY:
        check_counts(text.encode("utf-8", "surrogatepass"))
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise RequestError(f"{where} must be a string that holds JSON, got {shortened(text)!r}", where) from None
