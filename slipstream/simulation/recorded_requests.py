"""What became of each request of a recording: its tokens over time, its drafts and their fate, its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.request import FinishReason
from slipstream.scheduler.protocol import StepPlan
from slipstream.simulation.recording import (
    Aborted,
    Added,
    CacheForgotten,
    Committed,
    Marked,
    Planned,
    Recording,
)


@dataclass(frozen=True, slots=True)
class Verification:
    """A step verified drafts, the first of which would have filled output position `position`."""

    position: int
    num_verified: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Offer:
    """The drafter was asked for drafts from output position `position` on, and gave so many."""

    position: int
    num_asked: int
    num_given: int
    confidences: Sequence[float] | None


@dataclass(slots=True)
class RecordedRequest:
    """One request.

    Attributes:
        index: its place in the recording.
        chunks: (time, tokens) of every step that gave it output.
        end: why it ended; None where the recording ends before. end_time: when.
        error: what went wrong, when it ended in an error.
        first_seated: when it first got a seat.
    """

    index: int
    added: Added
    block_hashes: list[bytes]
    chunks: list[tuple[float, int]] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    end: FinishReason | None = None
    end_time: float | None = None
    error: str | None = None
    first_seated: float | None = None

    @property
    def request_id(self) -> str:
        return self.added.request_id

    @property
    def num_output_tokens(self) -> int:
        return sum(count for _, count in self.chunks)


@dataclass(slots=True)
class RecordedPart:
    """A part of a benchmark, or the whole run of a server.

    Attributes:
        mark: what was said of it; None for what stands before the first mark.
        forgets_cache: it began with an empty prefix cache.
        first_planned: when its first step was planned, with all that had come by then.
    """

    mark: Marked | None
    requests: list[RecordedRequest] = field(default_factory=list)
    forgets_cache: bool = False
    first_planned: float | None = None

    @property
    def is_measured(self) -> bool:
        return self.mark is None or self.mark.is_measured


def recorded_parts(recording: Recording) -> list[RecordedPart]:
    """The parts that hold requests, in order."""
    reader = _Reader()
    for event in recording.events:
        match event:
            case Marked():
                reader.parts.append(RecordedPart(event))
            case CacheForgotten():
                reader.parts[-1].forgets_cache |= not reader.parts[-1].requests
            case Added():
                reader.add(event)
            case Aborted():
                reader.end(event.request_id, FinishReason.ABORT, event.at)
            case Planned():
                reader.plan(event)
            case Committed():
                reader.commit(event)
    return [part for part in reader.parts if part.requests]


class _Reader:
    """Follows the events; a result counts only for the life of its request that it was planned in."""

    def __init__(self) -> None:
        self.parts = [RecordedPart(None)]
        self._num_requests = 0
        self._live: dict[str, RecordedRequest] = {}
        self._epochs: dict[str, int] = {}
        self._plans: dict[int, StepPlan] = {}

    def add(self, event: Added) -> None:
        request = RecordedRequest(self._num_requests, event, list(event.block_hashes))
        self._num_requests += 1
        self.parts[-1].requests.append(request)
        self._live[event.request_id] = request

    def end(self, request_id: str, reason: FinishReason, time: float) -> None:
        request = self._live.pop(request_id, None)
        if request is not None:
            request.end, request.end_time = reason, time

    def plan(self, event: Planned) -> None:
        plan, part = event.plan, self.parts[-1]
        if part.first_planned is None and part.requests:
            part.first_planned = event.now
        for request_id in plan.released_request_ids:
            self._epochs.pop(request_id, None)
        for new in plan.new_requests:
            self._epochs[new.request_id] = new.epoch
            request = self._live[new.request_id]
            if request.first_seated is None:
                request.first_seated = event.now
        self._plans[plan.step] = plan

    def commit(self, event: Committed) -> None:
        plan = self._plans.pop(event.result.step)
        for entry, result in zip(plan.requests, event.result.results, strict=True):
            request = self._live.get(entry.request_id)
            if request is None or self._epochs.get(entry.request_id) != entry.epoch:
                continue
            request.block_hashes += event.block_hashes.get(entry.request_id, ())
            if result.error is not None:
                request.error = result.error
            verdict = event.ends.get(entry.request_id)
            if entry.emits and result.error is None:
                position = request.num_output_tokens
                kept = len(result.token_ids) if verdict is None else verdict.num_kept_tokens
                if result.num_verified:
                    verified = min(result.num_verified, kept)
                    request.verifications.append(
                        Verification(position, verified, min(result.num_accepted, kept, verified))
                    )
                request.chunks.append((event.at, kept))
                if verdict is None and entry.num_draft_tokens:
                    request.offers.append(
                        Offer(
                            position + kept, entry.num_draft_tokens, result.num_draft_tokens, result.draft_confidences
                        )
                    )
            if verdict is not None:
                self.end(entry.request_id, verdict.finish_reason, event.at)
