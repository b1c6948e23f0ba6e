"""Streamed answers: one loop for all routes, and what is in every chunk of the two OpenAI completion routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.request import FinishReason
from slipstream.server.answers import UsageCount
from slipstream.server.errors import SERVER_ERROR, error_body
from slipstream.server.notes import Notes
from slipstream.server.speculation_report import SpeculationReport
from slipstream.server.sse import DONE, event
from slipstream.server.token_report import TokenReport
from slipstream.server.wire.openai import CompletionsRequest

ENGINE_FAILED = "the engine failed"


class AnswerStream(Protocol):
    """The events of one API's streamed answer."""

    def begin(self) -> Iterable[bytes]:
        """Before the first token."""
        ...

    def delta(self, number: int, delta: ChoiceDelta) -> Iterable[bytes]:
        """Choice `number` has something new; never an error."""
        ...

    def end(self) -> Iterable[bytes]:
        """Every choice has ended."""
        ...

    def failed(self, message: str) -> Iterable[bytes]:
        """The engine failed; nothing follows."""
        ...


async def stream_answer(generation: Generation, stream: AnswerStream) -> AsyncIterator[bytes]:
    """All events of an answer, as the engine makes it."""
    for item in stream.begin():
        yield item
    async for number, delta in generation:
        if delta.finish_reason is FinishReason.ERROR:
            for item in stream.failed(delta.error or ENGINE_FAILED):
                yield item
            return
        for item in stream.delta(number, delta):
            yield item
    for item in stream.end():
        yield item


class ChunkStream:
    """An AnswerStream of chunks with `choices`; a route says what a choice looks like."""

    def __init__(
        self,
        generation: Generation,
        body: CompletionsRequest,
        envelope: dict[str, Any],
        usage: UsageCount,
        report: SpeculationReport,
        notes: Notes,
        tokens: TokenReport,
    ) -> None:
        """`envelope`: the fields that every chunk has."""
        self._generation = generation
        self._body = body
        self._envelope = envelope
        self._usage = usage
        self._report = report
        self._tokens = tokens
        self._first_fields: dict[str, Any] = dict(notes.as_fields())

    def opening(self, number: int) -> dict[str, Any] | None:
        """The choice object sent before its first token, or None."""
        raise NotImplementedError

    def choice(self, number: int, delta: ChoiceDelta) -> tuple[dict[str, Any], bool]:
        """The choice object of a delta, and whether it shows anything."""
        raise NotImplementedError

    def begin(self) -> Iterable[bytes]:
        """See AnswerStream."""
        for number in range(len(self._generation.metrics)):
            opening = self.opening(number)
            if opening is not None:
                yield self._chunk([opening], with_usage=self._body.streams_usage_always)

    def delta(self, number: int, delta: ChoiceDelta) -> Iterable[bytes]:
        """See AnswerStream."""
        self._usage.num_output_tokens += len(delta.token_ids)
        choice, is_shown = self.choice(number, delta)
        if self._body.return_token_ids:
            choice["token_ids"] = delta.token_ids
        choice |= self._tokens.of(delta)
        always = self._body.streams_usage_always or self._tokens.is_wanted or self._body.return_token_ids
        if delta.finish_reason is not None:
            choice |= self._report.of_choice(self._generation, number)
        if is_shown or always or delta.finish_reason is not None or delta.logprobs:
            yield self._chunk([choice], with_usage=self._body.streams_usage_always)

    def end(self) -> Iterable[bytes]:
        """See AnswerStream."""
        if self._body.streams_usage:
            yield self._chunk([], with_usage=True, **self._report.of_answer(self._generation))
        yield DONE

    def failed(self, message: str) -> Iterable[bytes]:
        """See AnswerStream."""
        yield event(error_body(message, SERVER_ERROR, code="engine_error"))
        yield DONE

    def _chunk(self, choices: list[dict[str, Any]], *, with_usage: bool, **more: Any) -> bytes:
        payload = {**self._envelope, "choices": choices, **self._first_fields, **more}
        self._first_fields = {}
        if with_usage:
            payload["usage"] = self._usage.as_json()
        elif self._body.streams_usage:
            payload["usage"] = None
        return event(payload)
