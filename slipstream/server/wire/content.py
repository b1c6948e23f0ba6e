"""Message content: a string, or a list of parts of which only text can be served."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from slipstream.request import RequestError
from slipstream.server.wire.fields import MAX_CONTENT_PARTS, shortened
from slipstream.server.wire.objects import OpenObject

# What newer clients call a role, and what templates call it.
ROLES = {"developer": "system"}
TEXT_PARTS = ("text", "input_text", "output_text")


class TextPart(OpenObject):
    """One part of a message's content."""

    type: str
    text: str | None = None


Content = str | Annotated[list[TextPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)]


def text_of(content: Content, where: str, types: Collection[str] = TEXT_PARTS) -> str:
    """Content as one string. Raises RequestError for parts that are no text."""
    if isinstance(content, str):
        return content
    for part in content:
        if part.type not in types or part.text is None:
            raise RequestError(f"{where}: only parts of type 'text' can be served, got {shown_type(part.type)}", where)
    return "".join(part.text or "" for part in content)


def shown_type(name: str) -> str:
    return repr(shortened(name))
