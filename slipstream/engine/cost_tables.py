"""The cost table that an engine starts with: from a file, or measured on its own executor."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.config import (
    MEASURED_COSTS,
    NO_COST_TABLE,
    ModelSettings,
    Resolution,
    SchedulerConfig,
    SchedulerSettings,
)
from slipstream.engine.cost_table_files import read_cost_table
from slipstream.engine.profiling import CostProfiler
from slipstream.engine.step_probe import StepProbe
from slipstream.execution.arithmetic import Arithmetic, resolve_arithmetic
from slipstream.execution.build import thread_count
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import ModelSource
from slipstream.scheduler.cost_table import CostTable, Provenance

ROUNDS_AT_START = 3
TEMPERATURE_AT_START = 1.0  # of requests that name none
SETTING = "cost_table"


@dataclass(frozen=True, slots=True)
class StartingCosts:
    """A table, or None without one, and what the resolution report says of it: `source` None leaves that as it is."""

    table: CostTable | None = None
    reason: str = ""
    source: str | None = None

    def noted(self, resolution: Resolution) -> Resolution:
        """The resolution with this in the line of `cost_table`."""
        report = tuple(
            dataclasses.replace(row, reason=self.reason or row.reason, source=self.source or row.source)
            if row.name == SETTING
            else row
            for row in resolution.report
        )
        return dataclasses.replace(resolution, report=report)


def stated_costs(settings: SchedulerSettings, here: Provenance) -> StartingCosts:
    """What can be said before any weight is loaded: a file is read and checked. Raises SettingError."""
    if settings.cost_table == NO_COST_TABLE:
        return StartingCosts()
    if settings.cost_table in MEASURED_COSTS:
        reason = f"measured when the weights are loaded, in {settings.profile_seconds:g} s at most"
        return StartingCosts(None, reason, "derived")
    table = read_cost_table(settings.cost_table)
    origin = f"measured {table.provenance.date}" if table.provenance.date else "read"
    different = difference(table, here)
    return StartingCosts(table, f"warning: {different}" if different else f"{origin} for this machine and model")


def measured_costs(
    executor: TorchExecutor,
    config: SchedulerConfig,
    here: Provenance,
    seconds: float,
    on_progress: Callable[[float], None] | None = None,
) -> StartingCosts:
    """Measure on an executor that serves nobody yet."""
    begin = time.perf_counter()
    profiler = CostProfiler(StepProbe(executor, temperature=TEMPERATURE_AT_START), config)
    profiler.run(seconds, rounds=ROUNDS_AT_START, on_progress=on_progress)
    profile, took = profiler.profile(), time.perf_counter() - begin
    if profile is None:
        reason = f"{seconds:g} s were too short to measure a step; decides without a table. Give --profile-seconds more"
        return StartingCosts(None, reason, "derived")
    table = profile.table(here)
    return StartingCosts(table, f"measured in {took:.1f} s: {'; '.join(table.provenance.notes)}", "derived")


def measured_here(source: ModelSource, settings: ModelSettings) -> Provenance:
    """Provenance of a table that this process measures: machine, model as it runs, time and command."""
    arithmetic = resolve_arithmetic(settings, source.config)
    return Provenance(
        machine=machine_name(arithmetic.device, thread_count(settings.num_threads)),
        model=model_label(source.name, settings, arithmetic),
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]]),
    )


def machine_name(device: torch.device, num_threads: int) -> str:
    """The device, and for a CPU the threads in use: both decide what a step costs."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{_cpu_model()}, {num_threads} of {os.cpu_count()} threads"


def model_label(name: str, settings: ModelSettings, arithmetic: Arithmetic) -> str:
    """The model with what else of its settings changes its speed."""
    # The native kernels are always batch-invariant.
    is_invariant = settings.batch_invariant and arithmetic.library is None
    return f"{name}, {arithmetic.description}{', batch-invariant' if is_invariant else ''}"


def difference(table: CostTable, here: Provenance) -> str:
    """What is not the same for this process as for the table, in words; empty when it fits."""
    there = table.provenance
    parts = [
        f"it is of {what} {theirs!r}, this is {ours!r}"
        for what, theirs, ours in (("machine", there.machine, here.machine), ("model", there.model, here.model))
        if theirs != ours
    ]
    return "; ".join(parts)


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown CPU"
