"""Engines to measure: built from settings, on the scripted target or on a real model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from slipstream.bench.arrivals import Arrivals
from slipstream.bench.forced import KnownTexts, forced_drafter
from slipstream.bench.in_process import RecordingExecutor
from slipstream.config import (
    MEASURED_COSTS,
    NO_COST_TABLE,
    ModelFacts,
    SchedulerConfig,
    SettingError,
    Settings,
    SpeculativeSettings,
    check_settings,
    resolve_settings,
)
from slipstream.engine.cost_table_files import read_cost_table
from slipstream.engine.engine import Engine
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.layouts import NO_LAYOUT
from slipstream.scheduler.protocol import Executor
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import Recorder, scheduler_with
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.sources import PlainSource

_CLOCK = time.perf_counter
SCRIPTED_VOCAB = 256
SCRIPTED_MAX_LEN = 4096


@dataclass(frozen=True, slots=True)
class System:
    """An engine whose steps are kept, and recorded in a file where there is a `recording`."""

    engine: Engine
    recorder: RecordingExecutor
    recording: Recorder | None = None

    def mark(self, name: str, arrivals: Arrivals, *, is_measured: bool = True) -> None:
        """Say in the recording, if there is one, that a part of the benchmark begins."""
        if self.recording is not None:
            self.recording.marked(name, is_measured=is_measured, max_concurrency=arrivals.max_concurrency)


class SystemFactory(Protocol):
    """Makes systems that differ in settings only; whatever is costly to load is loaded once."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def description(self) -> str:
        """Model, numbers and device, for the report."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a plain text."""
        ...

    def encode_chat(self, text: str) -> list[int]:
        """The ids of a user's message as the model's chat template writes it, or of plain text without one."""
        ...

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int, record: RecordTo | None = None) -> System:
        """A fresh engine. `texts` and `luck_seed` are what `forced` drafts from; `record`: where its steps are
        recorded. Raises SettingError."""
        ...


def recorder_for(
    record: RecordTo | None, config: SchedulerConfig, model: str, settings: Settings, facts: ModelFacts
) -> Recorder | None:
    """What writes down the steps of a system, on the clock of `recorded`; None where nothing is to be recorded."""
    if record is None:
        return None
    return Recorder(record, config, clock=_CLOCK, model=model, settings=settings, facts=facts)


def recorded(
    scheduler: Scheduler,
    executor: Executor,
    commit_lag: int,
    eos_token_ids: Sequence[int] = (),
    recording: Recorder | None = None,
) -> System:
    """An engine around an executor whose steps are kept."""
    recorder = RecordingExecutor(executor, scheduler)
    engine = Engine(
        scheduler,
        recorder,
        clock=_CLOCK,
        eos_token_ids=tuple(eos_token_ids),
        commit_lag=commit_lag,
        on_close=None if recording is None else recording.close,
    )
    return System(engine, recorder, recording)


def chosen_drafter(
    settings: Settings,
    texts: KnownTexts,
    vocab_size: int,
    luck_seed: int,
    choose: Callable[[SpeculativeSettings | None], DrafterSource | None],
) -> DrafterSource | None:
    """The drafter that settings name, the forced one included, which only works offline.

    Args:
        choose: gives any other (speculation/choice.py).
    """
    forced = forced_drafter(settings, texts, vocab_size, luck_seed)
    if forced is not None and settings.speculative is not None:
        return PlainSource(settings.speculative, forced)
    return choose(settings.speculative)


class ScriptedFactory:
    """Systems without a model: text is a pure function of the prefix, and a step costs next to nothing.

    What its runs show is the scheduler's doing alone: who runs, what steps hold. Its times mean nothing.
    """

    vocab_size = SCRIPTED_VOCAB
    description = "scripted target (no model; times mean nothing)"

    def encode(self, text: str) -> list[int]:
        """One id per byte."""
        return list(text.encode())

    def encode_chat(self, text: str) -> list[int]:
        """As plain text."""
        return self.encode(text)

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int, record: RecordTo | None = None) -> System:
        """See SystemFactory."""
        check_settings(settings)
        drafter = chosen_drafter(settings, texts, self.vocab_size, luck_seed, open_drafter)
        layout = NO_LAYOUT if drafter is None else drafter.layout
        settings = replace(settings, speculative=None if drafter is None else drafter.settings)
        facts = ModelFacts(SCRIPTED_MAX_LEN, kv_bytes_per_token=8)
        config = resolve_settings(settings, facts, layout).scheduler
        executor = ScriptedExecutor(
            HashedLogits(self.vocab_size),
            num_kv_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            drafter=None if drafter is None else drafter.build(None).drafter,
            max_model_len=config.max_model_len,
        )
        recording = recorder_for(record, config, self.description, settings, facts)
        scheduler = scheduler_with(recording, config, costs=_stated_costs(settings))
        return recorded(scheduler, executor, settings.scheduler.commit_lag, recording=recording)


def _stated_costs(settings: Settings) -> CostTable | None:
    """A table from a file; there is nothing to measure without a model. Raises SettingError."""
    name = settings.scheduler.cost_table
    if name in MEASURED_COSTS:
        raise SettingError(f"--cost-table {name} measures a model; a scripted target takes a file, or {NO_COST_TABLE}")
    return None if name == NO_COST_TABLE else read_cost_table(name)
