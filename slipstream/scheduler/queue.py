"""WaitingQueue: who is admitted next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from slipstream.request import Request

_KEY = attrgetter("queue_key")


class WaitingQueue:
    """Waiting requests, the most urgent first.

    The urgency of a request is `priority - waited / ageing`; lower goes first. All requests age at the same pace, so
    their order never changes while they wait and `priority + arrival_time / ageing` sorts them once and for all.
    """

    def __init__(self, priority_ageing_s: float) -> None:
        self._ageing_s = priority_ageing_s
        self._requests: list[Request] = []
        self._num_seen = 0

    def add(self, request: Request) -> None:
        """Queue a new request and fix its key; equal urgency is first come, first served."""
        request.queue_key = (request.priority + request.arrival_time / self._ageing_s, self._num_seen)
        self._num_seen += 1
        insort(self._requests, request, key=_KEY)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request at the place it came from."""
        insort(self._requests, request, key=_KEY)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._requests, request.queue_key, key=_KEY)
        del self._requests[index]

    def pop_first(self) -> Request:
        return self._requests.pop(0)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)
