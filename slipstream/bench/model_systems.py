"""Engines to measure, on a real model whose weights are read once for all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slipstream.bench.forced import KnownTexts
from slipstream.bench.systems import System, chosen_drafter, recorded, recorder_for
from slipstream.config import (
    MEASURED_COSTS,
    PROFILE_COSTS,
    ModelSettings,
    SchedulerConfig,
    SettingError,
    Settings,
    SpeculativeSettings,
    check_settings,
    resolve_settings,
)
from slipstream.engine.build import model_facts
from slipstream.engine.cost_tables import measured_costs, measured_here, stated_costs
from slipstream.engine.profiling import CostProfiler
from slipstream.engine.step_probe import StepProbe
from slipstream.execution.build import build_decoder, executor_around, thread_count
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model
from slipstream.models.protocol import TransformerDecoder
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.layouts import NO_LAYOUT
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import scheduler_with
from slipstream.speculation.choice import choose_speculation
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.shipped import SHIPPED_FOLDER


class ModelFactory:
    """Systems around one model. Model settings must not differ between them."""

    def __init__(self, settings: ModelSettings, *, progress: bool = True, shipped: Path = SHIPPED_FOLDER) -> None:
        """Opens the model; its weights are read with the first system. Raises ModelLoadError.

        Args:
            shipped: where the drafters of the package lie.
        """
        self._settings = settings
        self._shipped = shipped
        self._source = open_model(settings.model, progress=progress)
        self._loaded: TransformerDecoder | None = None
        self._measured: dict[SchedulerConfig, CostTable] = {}

    @property
    def vocab_size(self) -> int:
        """See SystemFactory."""
        return self._source.config.vocab_size

    @property
    def description(self) -> str:
        """See SystemFactory; loads the weights."""
        decoder = self._decoder()
        threads = f", {thread_count(self._settings.num_threads)} threads" if decoder.device.type == "cpu" else ""
        return f"{self._source.name}, {decoder.description} on {decoder.device}{threads}"

    def encode(self, text: str) -> list[int]:
        """See SystemFactory."""
        return self._source.tokenizer.encode(text)

    def encode_chat(self, text: str) -> list[int]:
        """See SystemFactory."""
        template = self._source.chat_template
        if template is None:
            return self.encode(text)
        rendered = template.render([{"role": "user", "content": text}])
        return self._source.tokenizer.encode(rendered, add_special_tokens=False)

    def build(self, settings: Settings, texts: KnownTexts, luck_seed: int, record: RecordTo | None = None) -> System:
        """See SystemFactory."""
        check_settings(settings)
        decoder = self._decoder()
        drafter = chosen_drafter(settings, texts, self.vocab_size, luck_seed, self._choose)
        settings = replace(settings, speculative=None if drafter is None else drafter.settings)
        facts = model_facts(self._source, settings, decoder.device, drafter)
        config = resolve_settings(settings, facts, NO_LAYOUT if drafter is None else drafter.layout).scheduler
        executor = executor_around(decoder, config.num_kv_blocks, config.block_size, drafter)
        recording = recorder_for(record, config, self._source.name, settings, facts)
        return recorded(
            scheduler_with(recording, config, costs=self._costs(settings, config, executor)),
            executor,
            settings.scheduler.commit_lag,
            self._source.config.eos_token_ids,
            recording,
        )

    def profiler(self, settings: Settings, *, temperature: float) -> CostProfiler:
        """What measures the steps of such systems, on an executor of its own without a drafter."""
        config = self.config(settings)
        executor = TorchExecutor(self._decoder(), num_kv_blocks=config.num_kv_blocks, block_size=config.block_size)
        return CostProfiler(StepProbe(executor, temperature=temperature), config)

    def config(self, settings: Settings) -> SchedulerConfig:
        """What the scheduler of such a system is built from."""
        drafter = chosen_drafter(settings, {}, self.vocab_size, 0, self._choose)
        settings = replace(settings, speculative=None if drafter is None else drafter.settings)
        facts = model_facts(self._source, settings, self._decoder().device, drafter)
        return resolve_settings(settings, facts, NO_LAYOUT if drafter is None else drafter.layout).scheduler

    @property
    def provenance(self) -> Provenance:
        """Of what is measured here and now."""
        return measured_here(self._source, self._settings)

    def _choose(self, settings: SpeculativeSettings | None) -> DrafterSource | None:
        def weights() -> str | None:
            return self._decoder().source_fingerprint

        return choose_speculation(settings, self._source, folder=self._shipped, weights=weights).drafter

    def _costs(self, settings: Settings, config: SchedulerConfig, executor: TorchExecutor) -> CostTable | None:
        """As at the start of a server, but measured once for systems of equal sizes, and not corrected while they run:
        what is compared decides by the same table. Raises SettingError."""
        here, scheduler = self.provenance, settings.scheduler
        if scheduler.cost_table not in MEASURED_COSTS:
            return stated_costs(scheduler, here).table
        sizes = replace(
            config,
            draft_budget="separate",
            composition="cost",
            verification="confidence",
            # The pool as it was asked for; what is derived follows the memory at hand, which other systems have taken.
            num_kv_blocks=settings.cache.num_kv_blocks or 0,
        )
        if sizes not in self._measured:
            costs = measured_costs(executor, config, here, scheduler.profile_seconds)
            if costs.table is None:
                raise SettingError(f"--cost-table {PROFILE_COSTS}: {costs.reason}")
            self._measured[sizes] = costs.table
        return self._measured[sizes]

    def _decoder(self) -> TransformerDecoder:
        if self._loaded is None:
            self._loaded = build_decoder(self._source, self._settings)
        return self._loaded
