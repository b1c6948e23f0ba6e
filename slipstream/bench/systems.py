"""Engines to measure: built from settings, on the scripted target or on a real model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.bench.forced import KnownTexts, forced_drafter
from slipstream.bench.in_process import RecordingExecutor
from slipstream.config import ModelFacts, Settings, check_settings, resolve_settings
from slipstream.engine.engine import Engine
from slipstream.scheduler.layouts import layout_for
from slipstream.scheduler.protocol import Drafter, Executor
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor
from slipstream.speculation.registry import build_drafter

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

    def encode(self, text: str) -> list[int]:
        """The ids of a plain text."""
        ...

    def encode_chat(self, text: str) -> list[int]:
        """The ids of a user's message as the model's chat template writes it, or of plain text without one."""
        ...

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int) -> System:
        """A fresh engine. `texts` and `luck_seed` are what `forced` drafts from. Raises SettingError."""
        ...


def recorded(scheduler: Scheduler, executor: Executor, commit_lag: int, eos_token_ids: Sequence[int] = ()) -> System:
    """An engine around an executor whose steps are kept."""
    recorder = RecordingExecutor(executor, scheduler)
    engine = Engine(
        scheduler, recorder, clock=time.perf_counter, eos_token_ids=tuple(eos_token_ids), commit_lag=commit_lag
    )
    return System(engine, recorder)


def chosen_drafter(settings: Settings, texts: KnownTexts, vocab_size: int, luck_seed: int) -> Drafter | None:
    """The drafter that settings name, the forced one included, which only works offline. Raises SettingError."""
    forced = forced_drafter(settings, texts, vocab_size, luck_seed)
    return build_drafter(settings.speculative) if forced is None else forced


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

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int) -> System:
        """See SystemFactory."""
        check_settings(settings)
        drafter = chosen_drafter(settings, texts, self.vocab_size, luck_seed)
        layout = layout_for(settings.speculative)
        config = resolve_settings(settings, ModelFacts(SCRIPTED_MAX_LEN, kv_bytes_per_token=8), layout).scheduler
        executor = ScriptedExecutor(
            HashedLogits(self.vocab_size),
            num_kv_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            drafter=drafter,
            max_model_len=config.max_model_len,
        )
        return recorded(Scheduler(config), executor, settings.scheduler.commit_lag)
