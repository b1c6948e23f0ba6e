"""ServedModel: what the HTTP side knows of the model, and how text becomes token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.models.chat_template import ChatTemplate
from slipstream.request import RequestError
from slipstream.server.errors import ApiError

# Longer texts are encoded in a worker thread, so that other requests' events go on meanwhile.
LONG_TEXT = 4096


class TextEncoder(Protocol):
    """The part of a tokenizer that the server needs."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of this server.

    Attributes:
        name: what clients call it.
        chat_template: None where the model has none; chat is then refused.
        max_request_tokens: prompt and output tokens of one request at most.
        created: Unix time in seconds.
        speculation: what `/v1/models` says of it; None when it is off.
    """

    name: str
    tokenizer: TextEncoder
    chat_template: ChatTemplate | None
    max_request_tokens: int
    created: int
    speculation: dict[str, Any] | None = None

    def check_name(self, name: str | None) -> None:
        """Raises ApiError 404 for any other model; no name means this one."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"the model {name[:200]!r} does not exist here; this server has {self.name!r}",
                parameter="model",
                code="model_not_found",
            )

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    async def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to the opening of the assistant's turn."""
        if self.chat_template is None:
            raise RequestError(
                f"the model {self.name!r} has no chat template; use /v1/completions", "messages", "no_chat_template"
            )
        prompt = await asyncio.to_thread(self.chat_template.render, messages)
        # The template writes the special tokens itself.
        return await self.encode(prompt, add_special_tokens=False)
