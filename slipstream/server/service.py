"""Service: what every route that generates does with a request, between its body and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from slipstream.engine.async_engine import AsyncEngine, Generation
from slipstream.request import RequestError, SamplingParams
from slipstream.server.body import read_body
from slipstream.server.notes import Notes, check_unknown
from slipstream.server.served_model import ServedModel
from slipstream.server.sse import unless_client_gone
from slipstream.server.wire.generation import GenerationRequest
from slipstream.server.wire.objects import OpenObject

Body = TypeVar("Body", bound=OpenObject)


@dataclass(frozen=True, slots=True)
class Service:
    """The engine, the model, and how strict the server is.

    Attributes:
        strict: fields that are not known, and wishes that cannot be met, are refused instead of noted.
    """

    engine: AsyncEngine
    model: ServedModel
    strict: bool = False

    async def read(self, request: Request, kind: type[Body]) -> tuple[Body, Notes]:
        """A checked body. Raises ApiError, RequestError or ClientGoneError."""
        body = await read_body(request, kind)
        notes = Notes(strict=self.strict)
        check_unknown(body, notes)
        return body, notes

    async def submit(
        self,
        request: Request,
        answer_id: str,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        body: GenerationRequest,
        notes: Notes,
    ) -> Generation:
        """Hand prompts to the engine. Raises RequestError, EngineDeadError, or ClientGoneError."""
        if sampling.constraint is not None:
            await unless_client_gone(request, self.model.check_constraint(sampling.constraint))
        work = self.engine.submit(
            answer_id,
            prompts,
            sampling,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            max_draft_tokens=self._draft_limit(body, notes),
        )
        return await unless_client_gone(request, work)

    def _draft_limit(self, body: GenerationRequest, notes: Notes) -> int | None:
        """Drafts per step that the request allows; None for as many as the server makes."""
        wish, most = body.speculative, self.model.num_speculative_tokens
        if wish is None:
            return None
        if wish.enabled is False:
            return 0
        count = wish.num_speculative_tokens
        if not most:
            if wish.enabled or count:
                notes.add(
                    "speculative asks for drafts, but this server makes none; the text is the same, only slower",
                    "speculative",
                    "no_speculation",
                )
            return None
        if count is not None and not 0 <= count <= most:
            raise RequestError(
                f"speculative.num_speculative_tokens must be between 0 and {most}, got {count}; the nearest is "
                f"{0 if count < 0 else most}",
                "speculative",
            )
        return count

    def restrictions(self, body: GenerationRequest) -> dict[str, Any]:
        """Parameters for the engine that take a tokenizer to work out."""
        if not body.bad_words:
            return {}
        encode = self.model.tokenizer.encode
        words: dict[tuple[int, ...], None] = {}
        for word in body.bad_words:
            for text in (word, f" {word.lstrip()}"):  # at the beginning of a text, and inside of one
                words[tuple(encode(text, add_special_tokens=False))] = None
        return {"bad_words_token_ids": tuple(filter(None, words))}
