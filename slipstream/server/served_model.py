"""ServedModel: what the HTTP side knows of the model, and how text becomes token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slipstream.models.chat_format import THINK_END, THINK_START
from slipstream.models.chat_template import ChatTemplate
from slipstream.request import OutputConstraint, RequestError, ThinkingBudget
from slipstream.sampling.grammar import GrammarCompiler
from slipstream.server.answers import ReasoningCount
from slipstream.server.assistant_text import Reasoning
from slipstream.server.conversation import ChatText, Conversation, write_out
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

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def id_to_token(self, token_id: int) -> str | None: ...


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
        grammars: compiles what outputs must be; None where they cannot be held to anything.
    """

    name: str
    tokenizer: TextEncoder
    chat_template: ChatTemplate | None
    max_request_tokens: int
    created: int
    speculation: dict[str, Any] | None = None
    longest_token: int | None = None
    grammars: GrammarCompiler | None = None
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

    async def check_constraint(self, constraint: OutputConstraint) -> None:
        """Compile it in a worker thread, so that other requests' events and the engine go on meanwhile.

        Raises:
            RequestError: it cannot be used; names its parameter, and why.
        """
        if self.grammars is None:
            raise RequestError(
                f"{constraint.parameter} is not supported by this server", constraint.parameter, "unsupported_parameter"
            )
        await asyncio.to_thread(self.grammars.check, constraint)

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

    async def encode_chat(self, conversation: Conversation, *, opens_turn: bool = True) -> tuple[list[int], ChatText]:
        """A conversation as token ids and as text, up to the opening of the assistant's turn with `opens_turn`.

        Raises:
            RequestError: the model has no chat template, or its template refuses the conversation.
        """
        if self.chat_template is None:
            raise RequestError(
                f"the model {self.name!r} has no chat template; use /v1/completions", "messages", "no_chat_template"
            )
        written = await asyncio.to_thread(write_out, self.chat_template, conversation, opens_turn=opens_turn)
        # The template writes the special tokens itself.
        return await self.encode(written.text, add_special_tokens=False), written

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts per step at most; 0 where the server makes none."""
        return 0 if self.speculation is None else int(self.speculation["num_speculative_tokens"])

    @property
    def can_reason(self) -> bool:
        """Whether its chat template knows reasoning."""
        return self.chat_template is not None and self.chat_template.format.has_reasoning

    def think_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of the markers around the model's reasoning."""
        encode = self.tokenizer.encode
        start, end = (tuple(encode(marker, add_special_tokens=False)) for marker in (THINK_START, THINK_END))
        return start, end

    def thinking_budget(self, max_tokens: int | None, written: ChatText, parameter: str) -> ThinkingBudget | None:
        """The bound of the reasoning in an answer to `written`. Raises RequestError where the model does not reason."""
        if max_tokens is None:
            return None
        if not self.can_reason:
            raise RequestError(
                f"{parameter} is for models that reason, and this one does not; leave it out",
                parameter,
                "unsupported_parameter",
            )
        if max_tokens < 0:
            raise RequestError(f"{parameter} must be at least 0, got {max_tokens}", parameter)
        if written.reasoning is Reasoning.NONE:
            return None
        return ThinkingBudget(max_tokens, *self.think_ids(), written.reasoning is Reasoning.OPEN)

    def reasoning_counts(self, written: ChatText, num_choices: int) -> list[ReasoningCount]:
        """Counters of the reasoning tokens of each choice; none where nothing is reasoned."""
        if written.reasoning is Reasoning.NONE:
            return []
        start, end = self.think_ids()
        is_open = written.reasoning is Reasoning.OPEN
        return [ReasoningCount(start, end, is_open=is_open) for _ in range(num_choices)]
