"""Other settings for a recorded run: what `slipstream replay --set` does before it prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.bench.metrics import BenchResult, summarize
from slipstream.bench.variation import with_setting
from slipstream.config import (
    MEASURED_COSTS,
    NO_COST_TABLE,
    CacheSettings,
    SchedulerConfig,
    SettingError,
    Settings,
    resolve_settings,
    shown,
)
from slipstream.engine.cost_table_files import read_cost_table
from slipstream.lab.fitted_costs import fit_costs, mean_error
from slipstream.lab.modelled_run import Model, run_model
from slipstream.lab.recorded_steps import recorded_run, recorded_steps
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.layouts import LAYOUTS, DraftLayout, layout_for
from slipstream.simulation.pool_size import check_pool_size
from slipstream.simulation.recorded_requests import recorded_parts
from slipstream.simulation.recording import CostsSet, Header, Planned, Recording
from slipstream.simulation.replay import Replay
from slipstream.simulation.trace_acceptance import TraceAcceptance

FITTED = "fitted"
_NO_EFFECT = ("prompt_lookup_min", "prompt_lookup_max", "acceptance_length", "profile_seconds")


@dataclass(frozen=True, slots=True)
class Change:
    """Recorded settings, changed.

    Attributes:
        text: as it was asked for. settings, config: what comes out.
        cost_table: `none`, `fitted`, a file, or None to decide by what the recorded run decided by.
    """

    text: str
    settings: Settings
    config: SchedulerConfig
    cost_table: str | None


def changed(header: Header, assignments: Sequence[str]) -> Change:
    """Apply `name=value`s. What the run left open is decided again, but for the KV pool, which stays as large.

    Raises:
        SettingError: an unknown name, a value that cannot work, or one that a replay cannot follow.
    """
    if header.settings is None or header.facts is None:
        raise SettingError("the recording holds no settings that could be changed; it was not made by a command")
    settings, cost_table = header.settings, None
    if settings.speculative is not None and settings.speculative.acceptance_length is not None:
        # Forced acceptance plays no part, the recorded one does; 1 fits every K.
        free = dataclasses.replace(settings.speculative, acceptance_length=1.0)
        settings = dataclasses.replace(settings, speculative=free)
    names = []
    for text in assignments:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            raise SettingError(f"--set takes NAME=VALUE, such as max_num_seqs=8; got {text!r}")
        if name in _NO_EFFECT:
            raise SettingError(
                f"--set {text}: {name} has no effect here, because drafts are accepted as the recording saw them"
            )
        if name == "cost_table":
            cost_table = value.strip()
            if cost_table in MEASURED_COSTS:
                raise SettingError(
                    f"--set cost_table={cost_table}: nothing can be measured here; use none, fitted or a file"
                )
        settings = with_setting(settings, name, value.strip(), flag="--set")
        names.append(name)
    cache = settings.cache
    if "num_kv_blocks" not in names:
        cache = dataclasses.replace(
            cache, num_kv_blocks=None if "kv_cache_memory_bytes" in names else _pool(header, cache)
        )
    model = dataclasses.replace(settings.model, max_model_len=header.config.max_model_len)
    settings = dataclasses.replace(settings, model=model, cache=cache)
    config = resolve_settings(settings, header.facts, _layout(header, settings)).scheduler
    check_pool_size(config)
    return Change(", ".join(assignments), settings, config, cost_table)


def _layout(header: Header, settings: Settings) -> DraftLayout:
    """That of the recorded run while the method is the same: a checkpoint or the parts of a chain decided it."""
    recorded = None if header.settings is None else header.settings.speculative
    method = None if settings.speculative is None else settings.speculative.method
    if recorded is not None and recorded.method == method and method != "forced":
        return LAYOUTS[header.config.layout_name]
    return layout_for(settings.speculative)


def _pool(header: Header, cache: CacheSettings) -> int:
    """Blocks that hold as many tokens as the recorded pool."""
    tokens = header.config.num_kv_blocks * header.config.block_size
    if not 0 < cache.block_size <= tokens:
        raise SettingError(
            f"block_size must be from 1 to {tokens}, the tokens of the recorded KV pool, got {shown(cache.block_size)}"
        )
    return tokens // cache.block_size


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened, what the model says happened, and what it says would have happened.

    Attributes:
        assumptions: sentences on how the modelled figures came about.
    """

    recorded: BenchResult
    modelled: BenchResult
    modelled_change: BenchResult
    assumptions: list[str]


def replay_of(recording: Recording, change: Change | None) -> Replay:
    """The replay to compare plans with."""
    if change is None:
        return Replay(recording)
    costs = None
    if change.cost_table is not None:
        costs = _named_table(recording, change.cost_table)
    return Replay(recording, config=change.config, costs=costs, keep_costs=change.cost_table is not None)


def outcome_of(
    recording: Recording, change: Change, *, use_fitted: bool = False, on_done: Callable[[], None] = lambda: None
) -> Outcome:
    """Run the whole recorded workload twice on the simulated machine, under recorded and under changed settings.

    The whole of it, not what follows the first difference: only so are the two modelled columns alike in everything
    but the settings. `use_fitted`: steps cost what a fit says even where the run had a cost table.
    """
    header = recording.header
    steps = recorded_steps(recording)
    parts = recorded_parts(recording)
    if not any(part.is_measured for part in parts):
        raise SettingError("the recording holds no measured request; there is nothing to model")
    believed = last_costs(recording)
    if believed is not None and not use_fitted:
        machine, where = believed, f"the run's own cost table (version {believed.version})"
    else:
        machine = fit_costs([step for step in steps if step.is_measured], header.model)
        where = f"a table {machine.provenance.source} ({machine.provenance.notes[0]})"
    error = mean_error(machine, [step for step in steps if step.is_measured])
    acceptance = TraceAcceptance([request for part in parts for request in part.requests])

    def model(config: SchedulerConfig, costs: CostTable | None, lag: int) -> BenchResult:
        return summarize(
            run_model(Model(config, header.config, machine, costs, acceptance, lag), parts, on_done=on_done)
        )

    costs = believed
    if change.cost_table is not None:
        costs = _named_table(recording, change.cost_table)
    assumptions = [
        f"Steps cost what {where} says; over the recorded steps it is off by {error:.0%} in the mean.",
        "Drafts are accepted as they were at the same place of the same text, which is known for "
        f"{acceptance.share_known():.0%} of the places; the rest is drawn at the recording's own rate for that depth.",
        "Every request is as long as it was, and arrives when it did"
        + (" (in a closed loop: when a place is free)." if _is_closed(recording) else "."),
        "The whole workload is run again, from its first request on.",
    ]
    if change.settings.scheduler.commit_lag != header.commit_lag:
        assumptions.append(
            f"The host's part of a step is what it was at commit lag {header.commit_lag}, overlapped or not."
        )
    return Outcome(
        recorded=summarize(recorded_run(parts, steps, running_by_step(recording))),
        modelled=model(header.config, believed, header.commit_lag),
        modelled_change=model(change.config, costs, change.settings.scheduler.commit_lag),
        assumptions=assumptions,
    )


def last_costs(recording: Recording) -> CostTable | None:
    """The table that the run decided by at its end; with refits, the best informed one."""
    tables = [event.costs for event in recording.events if isinstance(event, CostsSet)]
    return tables[-1] if tables else recording.header.costs


def running_by_step(recording: Recording) -> dict[int, int]:
    """Requests with a seat while each step ran."""
    seated: set[str] = set()
    running: dict[int, int] = {}
    for event in recording.events:
        if isinstance(event, Planned):
            seated.difference_update(event.plan.released_request_ids)
            seated.update(new.request_id for new in event.plan.new_requests)
            if event.plan.requests:
                running[event.plan.step] = len(seated)
    return running


def _named_table(recording: Recording, name: str) -> CostTable | None:
    if name == NO_COST_TABLE:
        return None
    if name == FITTED:
        steps = [step for step in recorded_steps(recording) if step.is_measured]
        return fit_costs(steps, recording.header.model)
    return read_cost_table(name)


def _is_closed(recording: Recording) -> bool:
    parts = recorded_parts(recording)
    return any(part.mark is not None and part.mark.max_concurrency is not None for part in parts)
