"""Pieces that chat and text answers share: choices put together, token usage, errors of the engine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta, PositionLogprobs
from slipstream.request import FinishReason
from slipstream.server.errors import SERVER_ERROR, ApiError, error_body
from slipstream.server.protocol import GenerationRequest
from slipstream.server.sse import DONE, event


@dataclass(slots=True)
class CollectedChoice:
    """One finished choice."""

    text: str = ""
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


async def collect(generation: Generation) -> list[CollectedChoice]:
    """Wait for every choice, in order of their numbers. Raises ApiError 500 when the engine failed one."""
    choices = [CollectedChoice() for _ in generation.metrics]
    async for number, delta in generation:
        if delta.finish_reason is FinishReason.ERROR:
            generation.close()
            raise ApiError(500, delta.error or "the engine failed", kind=SERVER_ERROR, code="engine_error")
        choice = choices[number]
        choice.text += delta.text
        choice.logprobs += delta.logprobs or ()
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = delta.finish_reason.value, delta.stop_reason
    return choices


class UsageCount:
    """Token usage as a client has seen it so far. A prompt counts once, however many choices it has."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._num_prompt_tokens = sum(len(submission.prompt_token_ids) for submission in generation.submissions)
        self.num_output_tokens = 0

    def as_json(self) -> dict[str, Any]:
        generation = self._generation
        n = generation.submissions[0].sampling.n
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self._num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(metrics.num_cached_tokens for metrics in generation.metrics[::n])
            },
        }

    @classmethod
    def of_finished(cls, generation: Generation) -> dict[str, Any]:
        """Usage of a generation that has ended."""
        usage = cls(generation)
        usage.num_output_tokens = sum(metrics.num_output_tokens for metrics in generation.metrics)
        return usage.as_json()


class ChunkWriter:
    """How one endpoint writes chunks; everything else about streaming is shared by `stream_chunks`."""

    def opening(self, number: int) -> dict[str, Any] | None:
        """The choice object sent before its first token, or None."""
        raise NotImplementedError

    def choice(self, number: int, delta: ChoiceDelta) -> dict[str, Any]:
        """The choice object of a delta."""
        raise NotImplementedError


async def stream_chunks(
    generation: Generation, request: GenerationRequest, envelope: dict[str, Any], writer: ChunkWriter
) -> AsyncIterator[bytes]:
    """All events of a streamed answer. `envelope` holds the fields every chunk has."""
    options = request.stream_options
    usage_at_end = bool(options and options.include_usage)
    usage_always = bool(options and options.continuous_usage_stats)
    usage = UsageCount(generation)

    def chunk(choices: list[dict[str, Any]], *, with_usage: bool) -> bytes:
        payload = {**envelope, "choices": choices}
        if with_usage:
            payload["usage"] = usage.as_json()
        elif usage_at_end:
            payload["usage"] = None
        return event(payload)

    for number in range(len(generation.metrics)):
        opening = writer.opening(number)
        if opening is not None:
            yield chunk([opening], with_usage=usage_always)
    async for number, delta in generation:
        if delta.finish_reason is FinishReason.ERROR:
            yield event(error_body(delta.error or "the engine failed", SERVER_ERROR, code="engine_error"))
            yield DONE
            return
        usage.num_output_tokens += len(delta.token_ids)
        if delta.text or delta.finish_reason is not None or delta.logprobs or usage_always:
            yield chunk([writer.choice(number, delta)], with_usage=usage_always)
    if usage_at_end:
        yield chunk([], with_usage=True)
    yield DONE
