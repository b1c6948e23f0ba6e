"""ServedModel: what the HTTP side knows of the model, and how text becomes token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.models.chat_template import ChatTemplate
from slipstream.request import RequestError
from slipstream.server.errors import ApiError

# Longer texts are encoded in a worker thread, so that other requests' events go on meanwhile.
LONG_TEXT = 4096
# The tokenizer holds Python's lock while it encodes, up to 2 µs per byte, so a longer text (bytes) is first encoded in
# pieces (characters), until it is known to be too long.
VERY_LONG_TEXT = 1 << 16
PIECE = 1 << 14


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
        longest_token: bytes of the vocabulary's longest token, where known; more bytes than that per token that fits
            are refused unread.
    """

    name: str
    tokenizer: TextEncoder
    chat_template: ChatTemplate | None
    max_request_tokens: int
    created: int
    speculation: dict[str, Any] | None = None
    longest_token: int | None = None
    _one_long_text: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    def check_name(self, name: str | None) -> None:
        """Raises ApiError 404 for any other model; no name means this one."""
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"the model {name[:200]!r} does not exist here; this server has {self.name!r}",
                parameter="model",
                code="model_not_found",
            )

    def check_length(self, num_tokens: int) -> None:
        """Refuse a prompt that is too long beyond doubt, before more work goes into it. The scheduler judges the rest.

        Args:
            num_tokens: the prompt's tokens, or a number that they are not below by more than an eighth.
        """
        limit = self.max_request_tokens
        if num_tokens > limit + limit // 8 + 64:
            raise RequestError(
                f"the prompt has more than {limit} tokens, but this server holds at most {limit} tokens of one "
                f"request, prompt and output together; the longest prompt that works is {limit - 1}",
                "prompt",
                "context_length_exceeded",
            )

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. Raises RequestError for one that is far too long, soon."""
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        async with self._one_long_text:  # more threads would only make the event loop wait longer for its turn
            return await asyncio.to_thread(self._encode_long, text, add_special_tokens)

    def _encode_long(self, text: str, add_special_tokens: bool) -> list[int]:
        num_bytes = len(text.encode("utf-8", "surrogatepass"))
        if self.longest_token is not None:
            self.check_length(num_bytes // self.longest_token)
        if num_bytes > max(VERY_LONG_TEXT, self.max_request_tokens):
            num_tokens = 0
            for start in range(0, len(text), PIECE):
                piece = text[start : start + PIECE]
                num_tokens += len(self.tokenizer.encode(piece, add_special_tokens=False))
                self.check_length(num_tokens)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    async def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to the opening of the assistant's turn."""
        if self.chat_template is None:
            raise RequestError(
                f"the model {self.name!r} has no chat template; use /v1/completions", "messages", "no_chat_template"
            )
        prompt = await asyncio.to_thread(self.chat_template.render, messages)
        # The template writes the special tokens itself.
        return await self.encode(prompt, add_special_tokens=False)
