"""What `/v1/completions` and `/v1/chat/completions` have in common."""

from __future__ import annotations

from typing import Any

from slipstream.request import OutputConstraint, RequestError
from slipstream.server.wire.fields import Int64, Stop
from slipstream.server.wire.generation import GenerationRequest
from slipstream.server.wire.objects import OpenObject
from slipstream.server.wire.structured import ResponseFormat

MAX_CHOICES = 1024


class StreamOptions(OpenObject):
    """`stream_options`.

    Attributes:
        include_usage: usage in a last chunk. continuous_usage_stats: usage in every chunk.
        include_token_sources: in every chunk, one word per token in it: `draft` or `target`.
        include_token_texts: in every chunk, the text of each token in it.
        include_refused_drafts: in every chunk, the verified drafts that were not accepted.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_token_sources: bool | None = None
    include_token_texts: bool | None = None
    include_refused_drafts: bool | None = None


class CompletionsRequest(GenerationRequest):
    """Body of either route."""

    n: Int64 | None = None
    max_tokens: Int64 | None = None
    stop: Stop | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Int64 | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None

    def constraints(self) -> list[OutputConstraint]:
        """See GenerationRequest."""
        constraint = None if self.response_format is None else self.response_format.constraint()
        return super().constraints() + ([] if constraint is None else [constraint])

    def check(self) -> None:
        """Refuse combinations that make no sense. Raises RequestError."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RequestError(
                "prompt_logprobs come with whole answers only: leave stream out, or ask /v1/completions for echo with "
                "logprobs",
                "prompt_logprobs",
            )

    @property
    def streams_usage(self) -> bool:
        """Whether a last chunk holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def streams_usage_always(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def choice_parameters(self) -> dict[str, Any]:
        """`n` and `stop` as SamplingParams takes them."""
        parameters: dict[str, Any] = {} if self.n is None else {"n": self.n}
        if self.stop is not None:
            parameters["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return parameters
