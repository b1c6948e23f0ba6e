"""Engines to measure: built from settings, on the scripted target or on a real model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.bench.forced import ForcedDrafter, KnownText, check_forced
from slipstream.bench.in_process import RecordingExecutor
from slipstream.config import SchedulerConfig, SettingError, Settings
from slipstream.engine.engine import Engine
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import Drafter, Executor
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

KnownTexts = Mapping[str, KnownText]

SCRIPTED_VOCAB = 256
SCRIPTED_MAX_LEN = 4096


@dataclass(frozen=True, slots=True)
class System:
    """An engine whose steps are recorded."""

    engine: Engine
    recorder: RecordingExecutor


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

    def tokenize(self, text: str) -> list[int]:
        """A prompt's ids."""
        ...

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int) -> System:
        """A fresh engine. `texts` and `luck_seed` are what `forced` drafts from. Raises SettingError."""
        ...


def forced_drafter(settings: Settings, texts: KnownTexts, vocab_size: int, luck_seed: int) -> ForcedDrafter | None:
    """The drafter of settings that force acceptance; None for others."""
    speculative = settings.speculative
    if speculative is None or speculative.method != "forced":
        return None
    layout, conditional = check_forced(speculative)
    return ForcedDrafter(layout, texts, conditional, vocab_size, luck_seed)


def recorded(scheduler: Scheduler, executor: Executor, commit_lag: int, eos_token_ids: Sequence[int] = ()) -> System:
    """An engine around an executor whose steps are kept."""
    recorder = RecordingExecutor(executor, scheduler)
    engine = Engine(
        scheduler, recorder, clock=time.perf_counter, eos_token_ids=tuple(eos_token_ids), commit_lag=commit_lag
    )
    return System(engine, recorder)


class ScriptedFactory:
    """Systems without a model: text is a pure function of the prefix, and a step costs next to nothing.

    What its runs show is the scheduler's doing alone: who runs, what steps hold. Its times mean nothing.
    """

    vocab_size = SCRIPTED_VOCAB
    description = "scripted target (no model; times mean nothing)"

    def tokenize(self, text: str) -> list[int]:
        """One id per byte."""
        return list(text.encode())

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int) -> System:
        """See SystemFactory; the only drafts are forced ones."""
        drafter: Drafter | None = forced_drafter(settings, texts, self.vocab_size, luck_seed)
        if settings.speculative is not None and drafter is None:
            raise SettingError(f"--scripted has no drafter {settings.speculative.method!r}; use forced, or none")
        config = scripted_config(settings)
        executor = ScriptedExecutor(
            HashedLogits(self.vocab_size),
            num_kv_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            drafter=drafter,
            max_model_len=config.max_model_len,
        )
        return recorded(Scheduler(config), executor, settings.scheduler.commit_lag)


def scripted_config(settings: Settings) -> SchedulerConfig:
    """Numbers for the scripted target, whose KV pool holds every seat's longest request unless it is given."""
    scheduler, cache, speculative = settings.scheduler, settings.cache, settings.speculative
    num_rows, num_seats = scheduler.max_num_batched_tokens or 64, scheduler.max_num_seqs or 8
    max_len = settings.model.max_model_len or SCRIPTED_MAX_LEN
    layout_name = "ngram" if speculative is None else speculative.layout_name
    num_drafts = 0 if speculative is None else speculative.num_speculative_tokens
    capacity = scheduler.draft_capacity
    if capacity is None:
        capacity = LAYOUTS[layout_name].default_draft_capacity(num_rows, num_seats, num_drafts)
    if num_rows < num_seats:
        raise SettingError(
            f"max_num_batched_tokens {num_rows} is below max_num_seqs {num_seats}: not every running request would "
            f"get its row; the smallest that works is {num_seats}"
        )
    return SchedulerConfig(
        max_num_batched_tokens=num_rows,
        max_num_seqs=num_seats,
        max_model_len=max_len,
        block_size=cache.block_size,
        num_kv_blocks=cache.num_kv_blocks or num_seats * -(-(max_len + num_drafts + 1) // cache.block_size),
        enable_prefix_caching=cache.enable_prefix_caching,
        draft_budget=scheduler.draft_budget,
        layout_name=layout_name,
        num_speculative_tokens=num_drafts,
        draft_capacity=capacity,
        min_prefill_tokens=num_rows // 8 if scheduler.min_prefill_tokens is None else scheduler.min_prefill_tokens,
        draft_max_model_len=None if speculative is None else speculative.draft_max_model_len,
        priority_ageing_s=scheduler.priority_ageing_s,
    )
