"""When requests are sent: all at once, one for one (closed loop), at a rate (open loop), or as recorded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.config import SettingError

MIN_RATE, MAX_RATE = 1e-3, 1e9
MIN_BURSTINESS, MAX_BURSTINESS = 1e-3, 1e6


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A schedule of requests.

    Attributes:
        description: in words, for the report.
        times: seconds after the start at which each request is released, never falling, shape [N].
        max_concurrency: a released request waits while this many are in flight; None for no limit.
    """

    description: str
    times: Sequence[float]
    max_concurrency: int | None = None

    @property
    def is_open_loop(self) -> bool:
        """Latency counts from release, since users do not wait for each other."""
        return self.max_concurrency is None


def all_at_once(num_requests: int) -> Arrivals:
    """Everything is queued at the start."""
    return Arrivals("all at once", [0.0] * num_requests)


def closed_loop(num_requests: int, concurrency: int) -> Arrivals:
    """`concurrency` users, each of whom sends the next request when the last one was answered."""
    if concurrency < 1:
        raise SettingError(f"--concurrency must be at least 1, got {concurrency}")
    return Arrivals(f"closed loop, concurrency {concurrency}", [0.0] * num_requests, concurrency)


def open_loop(num_requests: int, rate: float, burstiness: float = 1.0, seed: int = 0) -> Arrivals:
    """Gaps drawn from a gamma distribution of mean 1 / rate; the first request comes after one gap.

    The drawn times are kept as they are. (Stretching them until the last one falls on N / rate, as is sometimes done,
    takes away the rate's own variance, and runs then look steadier than traffic is.)

    Args:
        rate: requests per second, MIN_RATE to MAX_RATE.
        burstiness: shape of the gamma distribution, MIN_BURSTINESS to MAX_BURSTINESS: 1 is a Poisson process, below 1
            is burstier, above 1 steadier; infinity sends at equal gaps.
        seed: same seed, same times.
    """
    if not MIN_RATE <= rate <= MAX_RATE:
        nearest = MAX_RATE if rate > MAX_RATE else MIN_RATE
        raise SettingError(
            f"--request-rate must be between {MIN_RATE:g} and {MAX_RATE:g} requests per second, got {rate}; "
            f"the nearest is {nearest:g}"
        )
    if not (MIN_BURSTINESS <= burstiness <= MAX_BURSTINESS or burstiness == math.inf):
        raise SettingError(
            f"--burstiness must be between {MIN_BURSTINESS:g} and {MAX_BURSTINESS:g}, or inf for equal gaps, "
            f"got {burstiness}; 1 is a Poisson process"
        )
    if math.isinf(burstiness):
        gaps = np.full(num_requests, 1.0 / rate)
    else:
        gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), num_requests)
    return Arrivals(f"open loop, {rate:g} requests/s, burstiness {burstiness:g}", np.cumsum(gaps).tolist())


def replayed(times: Sequence[float]) -> Arrivals:
    """As recorded: seconds after the start, never falling. Raises SettingError for the first time that does."""
    for before, after in itertools.pairwise(times):
        if after < before:
            raise SettingError(f"arrival times must not fall, got {after:g} s after {before:g} s; sort the trace")
    return Arrivals(f"as recorded over {times[-1] if times else 0.0:g} s", list(times))


def choose_arrivals(
    num_requests: int, concurrency: int | None, rate: float | None, burstiness: float, seed: int
) -> Arrivals:
    """From the command's options; a rate with a concurrency limit would be neither loop, so it is refused."""
    if concurrency is not None and rate is not None:
        raise SettingError(
            f"--concurrency {concurrency} and --request-rate {rate:g} exclude each other: a limit on requests in "
            "flight would hold arrivals back and hide the queue; give one of them"
        )
    if rate is not None:
        return open_loop(num_requests, rate, burstiness, seed)
    if concurrency is not None:
        return closed_loop(num_requests, concurrency)
    return all_at_once(num_requests)
