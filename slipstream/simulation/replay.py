"""Replay: a recording's events put to a fresh scheduler; with unchanged settings it plans what was planned then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.config import SchedulerConfig, SettingError
from slipstream.request import Request, RequestError, SamplingParams
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.protocol import StepPlan, StepResult, StopVerdict
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.recording import (
    PLACEHOLDER,
    Aborted,
    Added,
    CacheForgotten,
    Committed,
    CostsSet,
    Marked,
    Planned,
    RecordedEvent,
    Recording,
    canonical,
)

MakeScheduler = Callable[[SchedulerConfig, "RecordedStops", CostTable | None], Scheduler]


class RecordedStops:
    """A StopChecker that ends requests where the recording says they ended: text was judged then, and is not here."""

    def __init__(self) -> None:
        self.ends: dict[str, StopVerdict] = {}

    def check(self, request: Request, new_token_ids: list[int]) -> StopVerdict | None:
        """See StopChecker."""
        return self.ends.get(request.request_id)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step that was planned differently.

    Attributes:
        step, now: of the recorded plan. recorded, replayed: the plans.
        refusal: why a request that was queued then would be refused now; there is no replayed plan in that case.
    """

    step: int
    now: float
    recorded: StepPlan | None
    replayed: StepPlan | None
    refusal: str | None = None


class Replay:
    """A scheduler to which recorded events are put one by one.

    Attributes:
        scheduler: as the events so far have left it.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        config: SchedulerConfig | None = None,
        costs: CostTable | None = None,
        keep_costs: bool = False,
        make_scheduler: MakeScheduler | None = None,
    ) -> None:
        """Without `config` the recorded one; with `keep_costs` every step is decided by `costs`, whatever the
        recording says. Raises SettingError where block hashes cannot serve the config (see `hashes_for`)."""
        header = recording.header
        self._recorded_config = header.config
        self._config = config or header.config
        check_hashes(header.config, self._config)
        self._keep_costs = keep_costs
        self._stops = RecordedStops()
        make = make_scheduler or (lambda config, stops, costs: Scheduler(config, stop_checker=stops, costs=costs))
        self.scheduler = make(self._config, self._stops, costs if keep_costs else header.costs)
        self._requests: dict[str, tuple[Request, list[bytes]]] = {}
        self._plans: dict[int, StepPlan] = {}

    def apply(self, event: RecordedEvent) -> StepPlan | None:
        """Put one event to the scheduler; for a Planned one, the plan it makes now (canonical).

        Raises RequestError when it refuses a request that was queued then. After a plan that differs from the recorded
        one, later events mean nothing to it.
        """
        match event:
            case Added():
                request = request_of(event)
                hashes = list(event.block_hashes)
                request.block_hashes = hashes_for(hashes, self._recorded_config, self._config)
                self.scheduler.add_request(request)
                self._requests[event.request_id] = request, hashes
            case Aborted():
                self.scheduler.abort(event.request_id)
                self._requests.pop(event.request_id, None)
            case Planned():
                plan = self.scheduler.schedule(event.now)
                if plan.requests:
                    self._plans[plan.step] = plan
                return canonical(plan)
            case Committed():
                self._commit(event)
            case CostsSet() if not self._keep_costs:
                self.scheduler.set_costs(event.costs)
            case CacheForgotten():
                self.scheduler.forget_cached()
            case Marked() | CostsSet():
                pass
        return None

    def _commit(self, event: Committed) -> None:
        for request_id, new in event.block_hashes.items():
            if (known := self._requests.get(request_id)) is not None:
                request, hashes = known
                hashes += new
                request.block_hashes = hashes_for(hashes, self._recorded_config, self._config)
        self._stops.ends = dict(event.ends)
        plan = self._plans.pop(event.result.step)
        self.scheduler.commit(plan, _with_placeholders(event.result))
        for request_id in event.ends:
            self._requests.pop(request_id, None)


def first_divergence(
    recording: Recording,
    replay: Replay,
    *,
    only_rows: bool = False,
    on_step: Callable[[int], None] = lambda step: None,
) -> Divergence | None:
    """The first plan that differs from the recorded one; None when all are equal.

    Args:
        only_rows: a plan differs only where other rows would run: reasons and versions of cost tables may be others.
        on_step: hears the number of each step that was compared.
    """
    look = _what_runs if only_rows else (lambda plan: plan)
    step = 0
    for event in recording.events:
        try:
            plan = replay.apply(event)
        except RequestError as error:
            now = event.arrival_time if isinstance(event, Added) else 0.0
            return Divergence(step, now, None, None, error.message)
        if isinstance(event, Planned) and plan is not None:
            step = event.plan.step
            if look(plan) != look(event.plan):
                return Divergence(step, event.now, event.plan, plan)
            on_step(step)
    return None


def _what_runs(plan: StepPlan) -> StepPlan:
    return dataclasses.replace(plan, reason="", costs_version=None)


def request_of(event: Added) -> Request:
    """The recorded request, with placeholders for its prompt where there is no text."""
    tokens: Sequence[int] = event.prompt_token_ids or [PLACEHOLDER] * event.num_prompt_tokens
    return Request(
        event.request_id,
        tokens,
        SamplingParams(max_tokens=event.max_tokens, ignore_eos=True),
        choice_index=event.choice_index,
        priority=event.priority,
        arrival_time=event.arrival_time,
        max_draft_tokens=event.max_draft_tokens,
        reads_prefix_cache=event.reads_prefix_cache,
    )


def check_hashes(recorded: SchedulerConfig, config: SchedulerConfig) -> None:
    """Raise SettingError when the recorded block hashes say nothing about blocks of this config's size."""
    if not config.enable_prefix_caching:
        return
    if not recorded.enable_prefix_caching:
        raise SettingError(
            "enable_prefix_caching=true: the run was recorded without a prefix cache, so which prompts share their "
            "beginning is not known; only false works with this recording"
        )
    size = recorded.block_size
    if config.block_size % size:
        nearest = max(round(config.block_size / size), 1) * size
        raise SettingError(
            f"block_size={config.block_size}: hashes were recorded for blocks of {size} tokens, so only multiples of "
            f"it can be replayed with a prefix cache; the nearest is {nearest}"
        )


def hashes_for(hashes: Sequence[bytes], recorded: SchedulerConfig, config: SchedulerConfig) -> list[bytes]:
    """Hashes of the config's blocks from those of the recorded ones: a chain's link stands for all before it, so the
    last of the small blocks in a large one names the large one."""
    if not config.enable_prefix_caching:
        return []
    ratio = config.block_size // recorded.block_size
    return list(hashes[ratio - 1 :: ratio])


def _with_placeholders(result: StepResult) -> StepResult:
    """A copy whose lists the scheduler may keep."""
    return dataclasses.replace(
        result, results=[dataclasses.replace(r, token_ids=list(r.token_ids)) for r in result.results]
    )
