"""Admission: turns requests away while there is no room for them, and says when there will be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

from slipstream.engine.backlog import Backlog
from slipstream.engine.messages import Submission
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.server.errors import SERVER_ERROR, ApiError
from slipstream.server.options import QueueLimits
from slipstream.server.request_context import CURRENT_REQUEST
from slipstream.server.throughput import BusyRate

MIN_RETRY_S, MAX_RETRY_S = 1, 600


class Rejection(StrEnum):
    """Why a request was turned away; vLLM's words where it has them."""

    QUEUED_REQUESTS = "max_num_queued_reqs"
    QUEUED_TOKENS = "max_num_queued_tokens"
    REQUESTS_PER_KEY = "max_requests_per_key"


class Admission:
    """An AdmissionRule. A request that nothing waits before is always let in, however large.

    Args:
        num_seats: choices that run at once.
        clock: seconds.
        on_rejected: hears of each request that was turned away.
    """

    def __init__(
        self,
        limits: QueueLimits,
        num_seats: int,
        clock: Callable[[], float],
        on_rejected: Callable[[Rejection], None],
    ) -> None:
        self._limits = limits
        self._num_seats = num_seats
        self._clock = clock
        self._on_rejected = on_rejected
        self._choices_done = BusyRate()
        self._tokens_begun = BusyRate()
        self._num_choices = 0
        self._requests_by_key: Counter[int] = Counter()
        self._last_time = clock()
        self._last_backlog = 0

    def admit(self, submissions: Sequence[Submission], backlog: Backlog) -> AdmittedChoices:
        """See AdmissionRule. Raises ApiError 503 or 429, with a Retry-After."""
        self._measure(backlog.num_prompt_tokens)
        num_choices = sum([submission.sampling.n for submission in submissions])
        num_tokens = sum([len(submission.prompt_token_ids) for submission in submissions])
        context = CURRENT_REQUEST.get()
        key = None if context is None else context.key_number
        self._check(num_choices, num_tokens, key, backlog)
        self._num_choices += num_choices
        self._last_backlog += num_tokens
        if key is not None:
            self._requests_by_key[key] += 1
        return AdmittedChoices(self, num_choices, key)

    def release(self, num_choices: int, key: int | None) -> None:
        """A request that was let in is over."""
        self._pass_time()
        self._choices_done.add(num_choices)
        self._num_choices -= num_choices
        if key is not None:
            self._requests_by_key[key] -= 1

    def _check(self, num_choices: int, num_tokens: int, key: int | None, backlog: Backlog) -> None:
        limits = self._limits
        if key is not None and limits.max_requests_per_key is not None:
            own = self._requests_by_key[key]
            if own >= limits.max_requests_per_key:
                # One of its own must end; the key has this part of what ends.
                share = own / max(sum(self._requests_by_key.values()), 1)
                self._reject(
                    Rejection.REQUESTS_PER_KEY,
                    429,
                    f"this API key has {own} unfinished requests, and {limits.max_requests_per_key} is the most",
                    (own + 1 - limits.max_requests_per_key) / share,
                    self._choices_done,
                )
        if limits.max_queued_requests is not None and self._num_choices:
            excess = self._num_choices + num_choices - self._num_seats - limits.max_queued_requests
            if excess > 0:
                self._reject(
                    Rejection.QUEUED_REQUESTS,
                    503,
                    f"{self._num_choices} requests run or wait here, and {limits.max_queued_requests} may wait beside "
                    f"{self._num_seats} that run",
                    excess,
                    self._choices_done,
                )
        if limits.max_queued_tokens is not None and backlog.num_prompt_tokens:
            over = backlog.num_prompt_tokens + num_tokens - limits.max_queued_tokens
            if over > 0:
                self._reject(
                    Rejection.QUEUED_TOKENS,
                    503,
                    f"{backlog.num_prompt_tokens} prompt tokens wait here, with this request's {num_tokens} more than "
                    f"the {limits.max_queued_tokens} that may",
                    min(over, backlog.num_prompt_tokens),
                    self._tokens_begun,
                )

    def _reject(self, reason: Rejection, status: int, message: str, missing: float, pace: BusyRate) -> None:
        self._on_rejected(reason)
        rate = pace.per_second
        seconds = MIN_RETRY_S if rate is None else math.ceil(missing / rate)
        seconds = min(max(seconds, MIN_RETRY_S), MAX_RETRY_S)
        raise ApiError(
            status,
            f"{message}; try again in {seconds} s",
            code="overloaded" if status == 503 else "too_many_requests",
            kind=SERVER_ERROR if status == 503 else "rate_limit_error",
            headers={"Retry-After": str(seconds)},
        )

    def _pass_time(self) -> None:
        now = self._clock()
        if self._num_choices:
            self._choices_done.pass_time(now - self._last_time)
            self._tokens_begun.pass_time(now - self._last_time)
        self._last_time = now

    def _measure(self, num_waiting_tokens: int) -> None:
        """What left the backlog since the last look has begun to run, but for the few that were aborted."""
        self._pass_time()
        self._tokens_begun.add(max(self._last_backlog - num_waiting_tokens, 0))
        self._last_backlog = num_waiting_tokens


class AdmittedChoices:
    """An AdmittedRequest."""

    def __init__(self, owner: Admission, num_choices: int, key: int | None) -> None:
        self._owner = owner
        self._num_choices = num_choices
        self._key = key

    def ended(self, metrics: Sequence[RequestMetrics]) -> None:
        """See AdmittedRequest."""
        self._owner.release(self._num_choices, self._key)
