"""Pieces that all answers share: choices put together, token usage, where tokens came from."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta, PositionLogprobs
from slipstream.request import FinishReason
from slipstream.server.errors import SERVER_ERROR, ApiError


@dataclass(slots=True)
class CollectedChoice:
    """One finished choice; see ChoiceDelta."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


def new_id(prefix: str, separator: str = "-") -> str:
    return f"{prefix}{separator}{uuid.uuid4().hex}"


def token_sources(delta: ChoiceDelta) -> list[str]:
    """Where each token of a delta came from: `draft`, accepted by the target, or the `target` itself."""
    num_drafted = min(delta.num_accepted, len(delta.token_ids))
    return ["draft"] * num_drafted + ["target"] * (len(delta.token_ids) - num_drafted)


async def collect(generation: Generation) -> list[CollectedChoice]:
    """Wait for every choice, in order of their numbers. Raises ApiError 500 when the engine failed one."""
    choices = [CollectedChoice() for _ in generation.metrics]
    async for number, delta in generation:
        if delta.finish_reason is FinishReason.ERROR:
            generation.close()
            raise ApiError(500, delta.error or "the engine failed", kind=SERVER_ERROR, code="engine_error")
        choice = choices[number]
        choice.text += delta.text
        choice.token_ids += delta.token_ids
        choice.sources += token_sources(delta)
        choice.logprobs += delta.logprobs or ()
        if delta.prompt_logprobs is not None:
            choice.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = delta.finish_reason.value, delta.stop_reason
    return choices


class UsageCount:
    """Token usage as a client has seen it so far. A prompt counts once, however many choices it has."""

    def __init__(self, generation: Generation, reasoning: Sequence[ReasoningCount] = ()) -> None:
        """`reasoning`: one per choice, where the model reasons."""
        self._generation = generation
        self._reasoning = reasoning
        self.num_prompt_tokens = sum(len(submission.prompt_token_ids) for submission in generation.submissions)
        self.num_output_tokens = 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache."""
        n = self._generation.submissions[0].sampling.n
        return sum(metrics.num_cached_tokens for metrics in self._generation.metrics[::n])

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(count.num_tokens for count in self._reasoning)

    def count_all(self) -> UsageCount:
        """Of a generation that has ended."""
        self.num_output_tokens = sum(metrics.num_output_tokens for metrics in self._generation.metrics)
        return self

    def as_json(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        if self._reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.num_reasoning_tokens}
        return usage


class ReasoningCount:
    """Counts the reasoning tokens of one choice by the marker that ends it; markers do not count.

    Attributes:
        num_tokens: so far.
    """

    def __init__(self, start_ids: Sequence[int], end_ids: Sequence[int], *, is_open: bool) -> None:
        """`is_open`: the first token is already reasoning."""
        self.num_tokens = 0
        self._start = list(start_ids)
        self._end = list(end_ids)
        self._seen: list[int] = []
        self._first = 0 if is_open else None
        self._has_ended = False

    def add(self, token_ids: Sequence[int]) -> None:
        """The choice got tokens."""
        for token_id in token_ids:
            if self._has_ended:
                return
            self._seen.append(token_id)
            if self._first is None:
                if self._seen[-len(self._start) :] == self._start:
                    self._first = len(self._seen)
                continue
            self.num_tokens = len(self._seen) - self._first
            if self._seen[-len(self._end) :] == self._end and self.num_tokens >= len(self._end):
                self.num_tokens -= len(self._end)
                self._has_ended = True
