"""RecentRequests: how fast answers came lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from slipstream.engine.request_metrics import RequestMetrics
from slipstream.request import FinishReason, SamplingParams

NUM_REQUESTS = 100
WINDOW_S = 10


class TokensPerSecond:
    """Tokens of the last WINDOW_S whole seconds and the one that runs, counted by the second."""

    def __init__(self) -> None:
        self._counts: deque[tuple[int, int]] = deque()

    def add(self, now: float, count: int) -> None:
        """`count` tokens came at `now`, seconds."""
        second = int(now)
        if self._counts and self._counts[-1][0] == second:
            count += self._counts.pop()[1]
        self._counts.append((second, count))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Mean per second over WINDOW_S seconds and the part of a second that is on."""
        self._forget(now)
        return sum(count for _, count in self._counts) / (WINDOW_S + now - int(now))

    def _forget(self, now: float) -> None:
        while self._counts and self._counts[0][0] < int(now) - WINDOW_S:
            self._counts.popleft()


class RecentRequests:
    """A MetricsListener.

    Attributes:
        output_tokens, prompt_tokens: rates. Prompt tokens count when their first output comes, cached ones included.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: the engine's, seconds."""
        self.output_tokens = TokensPerSecond()
        self.prompt_tokens = TokensPerSecond()
        self._clock = clock
        self._first_token_s: deque[float] = deque(maxlen=NUM_REQUESTS)
        self._per_token_s: deque[float] = deque(maxlen=NUM_REQUESTS)

    @property
    def first_token_ms(self) -> float | None:
        """Median time to first token of the last NUM_REQUESTS choices; None before the first."""
        return _median_ms(self._first_token_s)

    @property
    def per_token_ms(self) -> float | None:
        """Median time per token after the first, of the last NUM_REQUESTS choices that ended; None before the first."""
        return _median_ms(self._per_token_s)

    @property
    def num_measured(self) -> int:
        """Choices behind `first_token_ms`."""
        return len(self._first_token_s)

    def on_submitted(self, sampling: SamplingParams, num_prompt_tokens: int) -> None:
        """See MetricsListener."""

    def on_first_token(self, metrics: RequestMetrics, seconds: float) -> None:
        """See MetricsListener."""
        self._first_token_s.append(seconds)
        self.prompt_tokens.add(self._clock(), metrics.num_prompt_tokens)

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """See MetricsListener."""
        self.output_tokens.add(self._clock(), num_tokens)

    def on_step(self, num_tokens: int, duration_s: float) -> None:
        """See MetricsListener."""

    def on_finished(self, metrics: RequestMetrics, sampling: SamplingParams, reason: FinishReason, now: float) -> None:
        """See MetricsListener."""
        if metrics.time_per_output_token is not None:
            self._per_token_s.append(metrics.time_per_output_token)

    def on_answered(self, metrics: Sequence[RequestMetrics]) -> None:
        """See MetricsListener."""


def _median_ms(seconds: deque[float]) -> float | None:
    return median(seconds) * 1e3 if seconds else None
