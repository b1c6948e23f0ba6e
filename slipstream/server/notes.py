"""Notes: what of a request was not done as asked, though the rest of it was. Under `--strict` there are none."""

from __future__ import annotations

import difflib
import re

from slipstream.request import RequestError
from slipstream.server.wire.fields import shortened
from slipstream.server.wire.generation import GenerationRequest
from slipstream.server.wire.objects import MAX_UNKNOWN, OpenObject, unknown_fields
from slipstream.server.wire.tools import ToolUse


class Notes:
    """Collects warnings for the answer's `warnings`; a strict one refuses instead."""

    def __init__(self, *, strict: bool) -> None:
        self.warnings: list[str] = []
        self._strict = strict

    def add(self, message: str, parameter: str, code: str) -> None:
        """Raises RequestError where the server is strict."""
        if self._strict:
            raise RequestError(message, parameter, code)
        self.warnings.append(message)

    def as_fields(self) -> dict[str, list[str]]:
        """What they add to an answer."""
        return {"warnings": self.warnings} if self.warnings else {}


def check_tools(tools: ToolUse, notes: Notes) -> None:
    """Note the functions whose arguments were to be held to their schema."""
    if tools.strict_names:
        notes.add(
            f"tools: arguments of {shortened(', '.join(tools.strict_names))} are not held to their schemas ('strict')",
            "tools",
            "unsupported_parameter",
        )


def check_unknown(body: OpenObject, notes: Notes) -> None:
    """Note the fields that are not known; known ones that cannot be served are refused by name.

    Raises:
        RequestError: such a field, or too many unknown ones.
    """
    not_supported = body.not_supported if isinstance(body, GenerationRequest) else {}
    seen: set[str] = set()
    for where, name, owner in unknown_fields(body):
        if not where and name in not_supported:
            if getattr(body, name) not in not_supported[name]:
                raise RequestError(
                    f"{name!r} is not supported by this server; leave it out", name, "unsupported_parameter"
                )
            continue
        path = f"{where}.{name}" if where else name
        kind = re.sub(r"\[\d+\]", "[]", path)
        if kind in seen:
            continue  # the same in many messages is said once
        seen.add(kind)
        if len(seen) > MAX_UNKNOWN:
            raise RequestError(f"the body has more than {MAX_UNKNOWN} unknown fields", shortened(path))
        path, short = shortened(path), shortened(name)
        near = difflib.get_close_matches(short, [*type(owner).model_fields, *(() if where else not_supported)], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        notes.add(f"unknown parameter {path!r} is ignored{hint}", path, "unknown_parameter")
