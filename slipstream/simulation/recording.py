"""The recording of a run: a header, then every call of the scheduler in order (docs/replay.md has the format).

Text is not needed to plan again: lengths, salted hashes of KV blocks and the place where each request ended stand for
it. `recorder.py` writes it, `recording_reader.py` reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.config import (
    ModelFacts,
    SchedulerConfig,
    Settings,
)
from slipstream.request import SamplingParams
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.protocol import (
    NewRequest,
    ScheduledRequest,
    StepPlan,
    StepResult,
    StopVerdict,
)

FORMAT = "slipstream-recording/1"
PLACEHOLDER = 0
"""Stands for every token id of a recording without text."""

REQUEST_COLUMNS = tuple(field.name for field in dataclasses.fields(ScheduledRequest))
NEW_COLUMNS = ("request_id", "epoch", "num_tokens", "num_prompt_tokens", "choice_index", "max_total_tokens")
RESULT_COLUMNS = ("num_tokens", "num_verified", "num_accepted", "num_draft_tokens", "draft_confidences", "error")
PLAN_FIELDS = tuple(f.name for f in dataclasses.fields(StepPlan) if f.name not in ("requests", "new_requests"))
RESULT_FIELDS = tuple(f.name for f in dataclasses.fields(StepResult) if f.name != "results")


@dataclass(frozen=True, slots=True)
class Header:
    """What the run was.

    Attributes:
        version: of the program that wrote it. date: of its start. model: its name.
        config: what the scheduler was built from. costs: its cost table at the start, None without one.
        settings: as the user gave them, and the facts they were resolved with; None where there were none.
        has_text: whether token ids and sampling parameters are in it.
    """

    version: str
    date: str
    model: str
    config: SchedulerConfig
    costs: CostTable | None = None
    settings: Settings | None = None
    facts: ModelFacts | None = None
    has_text: bool = False

    @property
    def commit_lag(self) -> int:
        """How many plans are made before a step's results are in."""
        return 0 if self.settings is None else self.settings.scheduler.commit_lag


@dataclass(frozen=True, slots=True)
class Added:
    """A request was queued. `block_hashes`: salted, of the prompt's full blocks; empty without a prefix cache.

    Recordings of older releases say nothing of `max_draft_tokens` and `reads_prefix_cache`: nobody could ask for them.
    """

    request_id: str
    num_prompt_tokens: int
    max_tokens: int | None
    priority: int
    arrival_time: float
    choice_index: int
    block_hashes: tuple[bytes, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    max_draft_tokens: int | None = None
    reads_prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class Aborted:
    """A request was dropped by its user at this time."""

    request_id: str
    at: float


@dataclass(frozen=True, slots=True)
class Planned:
    """`schedule(now)` gave this plan (canonical: see `canonical`)."""

    now: float
    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Committed:
    """`commit` of a step's results.

    Attributes:
        at: when it was done. result: with placeholders for token ids, unless the recording has text.
        ends: request id -> where and why it ended in this step.
        block_hashes: request id -> hashes of blocks that became full.
    """

    at: float
    result: StepResult
    ends: Mapping[str, StopVerdict] = field(default_factory=dict)
    block_hashes: Mapping[str, Sequence[bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostsSet:
    """Steps are decided by another cost table from here on."""

    costs: CostTable | None


@dataclass(frozen=True, slots=True)
class CacheForgotten:
    """The prefix cache was emptied."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A part of a benchmark begins.

    Attributes:
        name: of the part. is_measured: whether its figures count; False for a warm-up.
        max_concurrency: the closed loop's, None in an open loop: then arrival times stand for themselves.
    """

    name: str
    is_measured: bool = True
    max_concurrency: int | None = None


RecordedEvent = Added | Aborted | Planned | Committed | CostsSet | CacheForgotten | Marked


@dataclass(frozen=True, slots=True)
class Recording:
    """A run, read back. `is_cut`: the end is missing, as after a crash; what is there is whole."""

    header: Header
    events: list[RecordedEvent]
    is_cut: bool

    @property
    def num_steps(self) -> int:
        """Steps that ran."""
        return sum(isinstance(event, Planned) and bool(event.plan.requests) for event in self.events)


def canonical(plan: StepPlan) -> StepPlan:
    """The plan as a recording without text can hold it: known tokens as so many placeholders, parameters left out."""
    return dataclasses.replace(
        plan,
        requests=[dataclasses.replace(entry, new_block_ids=tuple(entry.new_block_ids)) for entry in plan.requests],
        new_requests=[
            placeholder_request(
                new.request_id,
                new.epoch,
                len(new.token_ids),
                new.num_prompt_tokens,
                new.choice_index,
                new.max_total_tokens,
            )
            for new in plan.new_requests
        ],
        released_request_ids=list(plan.released_request_ids),  # an empty plan's list lives on in the scheduler
    )


def placeholder_request(
    request_id: str, epoch: int, num_tokens: int, num_prompt_tokens: int, choice_index: int, max_total_tokens: int
) -> NewRequest:
    """A NewRequest whose tokens are not known, only how many."""
    return NewRequest(
        request_id,
        epoch,
        [PLACEHOLDER] * num_tokens,
        num_prompt_tokens,
        SamplingParams(),
        0,
        choice_index,
        max_total_tokens,
    )
