"""From settings to a running engine: the one place where all parts of serving a real model meet."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.config import (
    AUTO_COSTS,
    MEASURED_COSTS,
    ModelFacts,
    ModelSettings,
    Resolution,
    ResolvedSetting,
    Settings,
    check_settings,
    resolve_settings,
)
from slipstream.engine.cost_tables import StartingCosts, measured_costs, measured_here, stated_costs
from slipstream.engine.engine import Engine
from slipstream.engine.kept_costs import keep_costs, kept_costs_path, read_kept_costs
from slipstream.engine.messages import Submission
from slipstream.engine.profile_bar import profile_bar
from slipstream.engine.refit import CostRefitter
from slipstream.engine.stop_strings import TextStopChecker
from slipstream.engine.vocabulary import Vocabulary
from slipstream.engine.worker import WorkerThread
from slipstream.execution.arithmetic import Arithmetic, resolve_arithmetic
from slipstream.execution.build import build_executor, model_kv_bytes_per_token
from slipstream.execution.device import resolve_device
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import ModelSource, open_model
from slipstream.models.tokenizer import Tokenizer
from slipstream.request import RequestError
from slipstream.sampling.grammar import GrammarCompiler
from slipstream.sampling.sampler import check_sampling
from slipstream.scheduler.layouts import NO_LAYOUT
from slipstream.scheduler.stopping import TokenStopChecker
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import Recorder, scheduler_with
from slipstream.speculation.choice import choose_speculation
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.shipped import SHIPPED_FOLDER


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine in front of a real model, and what its fronts need beside it.

    Attributes:
        grammars: compiles what outputs are held to; requests are cheapest to take when that is done before.
        refitter: None without a cost table.
    """

    engine: Engine
    source: ModelSource
    vocabulary: Vocabulary
    resolution: Resolution
    grammars: GrammarCompiler
    refitter: CostRefitter | None = None

    @property
    def served_name(self) -> str:
        """What clients call the model."""
        return self.resolution.settings.model.served_model_name or self.source.name


def build_engine(
    settings: Settings,
    *,
    progress: bool = False,
    announce: Callable[[Resolution], None] | None = None,
    record: RecordTo | None = None,
    shipped: Path = SHIPPED_FOLDER,
) -> BuiltEngine:
    """Check settings, open the model, resolve, load weights, allocate KV.

    Args:
        progress: show bars while fetching and loading.
        announce: hears the resolution before the weights are loaded.
        record: where to record every step; None for nowhere. The recording ends when the engine is closed.
        shipped: where the drafters of the package lie.

    Raises:
        SettingError: a setting that cannot work; before anything is loaded. ModelLoadError: the model cannot be used.
    """
    check_settings(settings)
    if record is not None:
        record.check()
    device = resolve_device(settings.model.device)
    source = open_model(settings.model.model, progress=progress)
    speculation = choose_speculation(settings.speculative, source, folder=shipped)
    drafter = speculation.drafter
    settings = dataclasses.replace(settings, speculative=speculation.settings)
    facts = model_facts(source, settings, device, drafter)
    resolution = resolve_settings(settings, facts, NO_LAYOUT if drafter is None else drafter.layout)
    report = (*_model_rows(settings, source, device), speculation.as_setting(), *resolution.report)
    resolution = dataclasses.replace(resolution, report=report)
    here = measured_here(source, settings.model)
    costs = stated_costs(settings.scheduler, here)
    kept_path = kept_costs_path(here, resolution.scheduler, resolution.settings.speculative)
    kept = read_kept_costs(kept_path) if settings.scheduler.cost_table == AUTO_COSTS else None
    if kept is not None:
        costs = StartingCosts(
            kept, f"measured {kept.provenance.date} for these settings, kept in {kept_path}", "derived"
        )
    resolution = costs.noted(resolution)
    if announce is not None:
        announce(resolution)
    config = resolution.scheduler
    vocabulary = Vocabulary.from_tokenizer(source.tokenizer)
    eos_token_ids = tuple({*source.config.eos_token_ids, *source.tokenizer.eos_token_ids})
    grammars = grammar_compiler(source.tokenizer, vocabulary, eos_token_ids, source.config.vocab_size)
    commit_lag = resolution.settings.scheduler.commit_lag
    worker = WorkerThread("slipstream-executor") if commit_lag else None

    def load() -> tuple[TorchExecutor, StartingCosts]:
        executor = build_executor(
            source,
            resolution.settings.model,
            num_kv_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            drafter=drafter,
            matchers=grammars,
        )
        if kept is not None or settings.scheduler.cost_table not in MEASURED_COSTS:
            return executor, costs
        seconds = settings.scheduler.profile_seconds
        with profile_bar(seconds, is_shown=progress) as on_progress:
            measured = measured_costs(executor, config, here, seconds, on_progress)
        if settings.scheduler.cost_table == AUTO_COSTS and measured.table is not None:
            keep_costs(measured.table, kept_path)
        return executor, measured

    executor, costs = load() if worker is None else worker.submit(load).result()
    resolution = costs.noted(resolution)
    stops = TextStopChecker(TokenStopChecker(), vocabulary)
    recorder = None
    if record is not None:
        recorder = Recorder(record, config, clock=time.monotonic, model=source.name, settings=settings, facts=facts)
    scheduler = scheduler_with(recorder, config, stop_checker=stops, costs=costs.table)
    refitter = None if costs.table is None else CostRefitter(costs.table, scheduler.set_costs)
    engine = Engine(
        scheduler,
        executor,
        clock=time.monotonic,
        eos_token_ids=eos_token_ids,
        commit_lag=commit_lag,
        worker=worker,
        check_sampling=submission_checker(source.config.vocab_size, grammars),
        forget=stops.forget,
        on_step=None if refitter is None else refitter.observe,
        on_close=None if recorder is None else recorder.close,
    )
    return BuiltEngine(engine, source, vocabulary, resolution, grammars, refitter)


def _model_rows(settings: Settings, source: ModelSource, device: torch.device) -> list[ResolvedSetting]:
    """The report's lines on the model itself."""
    model, default = settings.model, ModelSettings()
    arithmetic = resolve_arithmetic(model, source.config)
    dtype = str(arithmetic.cache_dtype).removeprefix("torch.")
    name = model.served_model_name or source.name
    rows = [
        ResolvedSetting("model", model.model, "default" if model.model == default.model else "user"),
        ResolvedSetting("served_model_name", name, "user" if model.served_model_name else "derived", ""),
    ]
    for field, value, reason in (
        ("device", str(device), "the device at hand"),
        ("dtype", dtype, _dtype_reason(arithmetic)),
        ("quantization", arithmetic.quantization, arithmetic.reason),
    ):
        is_open = getattr(model, field) == "auto"
        rows.append(ResolvedSetting(field, value, "derived" if is_open else "user", reason if is_open else ""))
    return rows


def _dtype_reason(arithmetic: Arithmetic) -> str:
    if arithmetic.library is not None:
        return "of KV; hidden states are float32, weights quantised"
    return f"what this {arithmetic.device.type} multiplies in hardware"


def grammar_compiler(
    tokenizer: Tokenizer, vocabulary: Vocabulary, eos_token_ids: Sequence[int], vocab_size: int
) -> GrammarCompiler:
    """A compiler of constraints over the tokens of a model with `vocab_size` logits."""
    return GrammarCompiler(
        vocabulary.token_bytes,
        special_token_ids=vocabulary.special_token_ids,
        eos_token_ids=eos_token_ids,
        vocab_size=vocab_size,
        encode=functools.partial(tokenizer.encode, add_special_tokens=False),
    )


def submission_checker(vocab_size: int, grammars: GrammarCompiler | None = None) -> Callable[[Submission], None]:
    """Refuses token ids that the model does not have, in parameters and in the prompt, and constraints that cannot be
    compiled: all of them without `grammars`."""

    def check(submission: Submission) -> None:
        check_sampling(submission.sampling, vocab_size)
        constraint = submission.sampling.constraint
        if constraint is not None:
            if grammars is None:
                raise RequestError("this engine cannot hold an output to a grammar", constraint.parameter)
            grammars.check(constraint)
        for position, token_id in enumerate(submission.prompt_token_ids):
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"the prompt holds token id {token_id} at position {position}, but this model's ids are "
                    f"0 to {vocab_size - 1}",
                    "prompt",
                )

    return check


def model_facts(
    source: ModelSource, settings: Settings, device: torch.device, drafter: DrafterSource | None = None
) -> ModelFacts:
    """What the open settings depend on, of this model and its drafter on this machine."""
    dtype = resolve_arithmetic(settings.model, source.config).cache_dtype
    if device.type == "cuda":
        memory, _total = torch.cuda.mem_get_info(device)
    else:
        memory = available_memory()
    return ModelFacts(
        max_position=source.config.max_position,
        kv_bytes_per_token=model_kv_bytes_per_token(source.config, dtype)
        + (0 if drafter is None else drafter.kv_bytes_per_token(dtype)),
        device_type=device.type,
        memory_bytes=memory,
    )


def available_memory() -> int:
    """Bytes of main memory this process could still take, the control group's limit included."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                memory = int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):  # page cache, given back when needed
                used -= int(line.split()[1])
        if limit != "max":
            memory = min(memory, int(limit) - used)
    except (OSError, ValueError):
        pass
    return max(memory, 0)
