"""Predicts runs of the real engine from a profile of its steps, and compares them with what was measured.

    python benchmarks/against_engine.py --markdown table.md

Sixteen runs on the embedded model: concurrency 1, 4, 8, 16 x both draft budgets x two K, acceptance forced with the
dspark layout. The simulated runs have the same scheduler, workload and luck, and no figure of theirs but the profile's,
which is measured between the runs. Every run is repeated, in turn; what counts is the middle. The share of the machine
that other processes took during each run is printed, since it falsifies both sides. Exit status 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from slipstream.bench.arrivals import Arrivals, all_at_once, closed_loop
from slipstream.bench.compare import plain_texts
from slipstream.bench.dataset import built_in, cut_to_length
from slipstream.bench.forced import KnownTexts
from slipstream.bench.in_process import BenchRequest, InProcessLoad
from slipstream.bench.metrics import BenchResult, summarize
from slipstream.bench.model_systems import ModelFactory
from slipstream.bench.records import RunRecord
from slipstream.config import (
    CacheSettings,
    ModelSettings,
    SchedulerConfig,
    SchedulerSettings,
    Settings,
    SpeculativeSettings,
)
from slipstream.engine.cost_table_files import write_cost_table
from slipstream.lab.simulate import SimulatedRequest, Simulation, simulate
from slipstream.request import SamplingParams
from slipstream.scheduler.cost_table import CostTable
from slipstream.simulation.acceptance import GeometricAcceptance, conditional_acceptance

# About a quarter of the public result's (B = 512, S = 64, K = 5); both budgets matter: 16 seats x 6 rows fill it.
BUDGET, SEATS, BLOCK_SIZE = 96, 16, 16
CONCURRENCIES = {1: 12, 4: 24, 8: 32, 16: 48}  # users -> requests
ACCEPTANCE_LENGTHS = {5: 4.72, 3: 3.2}  # K -> tokens per step
BUDGETS = ("shared", "separate")
INPUT_LEN, OUTPUT_LEN, LUCK_SEED = 32, 96, 0
MEAN_BAR, WORST_BAR = 0.10, 0.20
NUM_WARMUPS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One of the sixteen."""

    concurrency: int
    draft_budget: str
    num_drafts: int

    def settings(self, base: Settings) -> Settings:
        """The scheduler mixes prompts in at once and verifies every draft, on both sides."""
        speculative = SpeculativeSettings(
            method="forced",
            layout="dspark",
            num_speculative_tokens=self.num_drafts,
            acceptance_length=ACCEPTANCE_LENGTHS[self.num_drafts],
        )
        return replace(base, scheduler=replace(base.scheduler, draft_budget=self.draft_budget), speculative=speculative)


@dataclass(frozen=True, slots=True)
class Figures:
    """What is compared. ttft_ms, tpot_ms: medians over requests."""

    throughput: float
    tpot_ms: float
    ttft_ms: float

    @classmethod
    def of(cls, result: BenchResult) -> Figures:
        if result.tpot_ms is None or result.ttft_ms is None or result.failed:
            raise RuntimeError(f"a run gave no figures: {result.failures}")
        return cls(result.output_throughput, result.tpot_ms.median, result.ttft_ms.median)

    def as_tuple(self) -> tuple[float, float, float]:
        return self.throughput, self.tpot_ms, self.ttft_ms


@dataclass(slots=True)
class Measured:
    """The repeats of a case. others: part of the machine's cores that other processes took, per repeat."""

    figures: list[Figures] = field(default_factory=list)
    records: list[RunRecord] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def middle(self) -> Figures:
        return Figures(*map(statistics.median, zip(*(figures.as_tuple() for figures in self.figures), strict=True)))

    @property
    def spread(self) -> float:
        """Largest over smallest throughput, less 1."""
        values = [figures.throughput for figures in self.figures]
        return max(values) / min(values) - 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case, measured and predicted. same_steps: whether both sides' steps held the same rows, one by one."""

    case: Case
    measured: Measured
    predicted: Figures
    same_steps: bool

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted over measured, less 1: throughput, TPOT, TTFT."""
        pairs = zip(self.predicted.as_tuple(), self.measured.middle.as_tuple(), strict=True)
        return tuple(predicted / measured - 1.0 for predicted, measured in pairs)


class CpuShare:
    """How much of the machine other processes take, from its counters; NaN where there are none."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.perf_counter(), _busy_s(), _own_s()

    def of_others(self) -> float:
        """Since this was made: 0 … 1 of all cores."""
        wall = time.perf_counter() - self._wall
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return max(others, 0.0) / (wall * (os.cpu_count() or 1))


def _busy_s() -> float:
    try:
        counts = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return math.nan
    idle = counts[3] + counts[4]
    return (sum(counts) - idle) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default: 3)")
    parser.add_argument("--profile-seconds", type=float, default=10.0, help="of each profile between the runs")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the requests, to try it out (default: 1)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(CONCURRENCIES), choices=CONCURRENCIES)
    parser.add_argument("--markdown", metavar="FILE", help="the table, as in docs/simulation.md")
    parser.add_argument("--json", metavar="FILE", help="every number, each repeat's included")
    parser.add_argument("--cost-table", metavar="FILE", help="where to write the profile")
    args = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    factory, base = _factory()
    workload = _workload(factory, max(_count(concurrency, args.scale) for concurrency in args.concurrency))
    cases = [Case(c, b, k) for c in args.concurrency for k in ACCEPTANCE_LENGTHS for b in BUDGETS]
    measured, table = measure(factory, base, workload, cases, args)
    outcomes = []
    for case in cases:
        steps, figures = predict(factory, base, workload, case, table, args.scale)
        same = all(_rows(run) == steps for run in measured[case].records)
        outcomes.append(Outcome(case, measured[case], figures, same))
    print_outcomes(console, outcomes, table)
    if args.markdown is not None:
        Path(args.markdown).write_text(markdown(outcomes, table), encoding="utf-8")
    if args.json is not None:
        Path(args.json).write_text(json.dumps(_as_json(outcomes), indent=2) + "\n", encoding="utf-8")
    if args.cost_table is not None:
        write_cost_table(table, args.cost_table)
    return 0 if all(mean <= MEAN_BAR and worst <= WORST_BAR for mean, worst in bars(outcomes)) else 1


def _factory() -> tuple[ModelFactory, Settings]:
    tokens = INPUT_LEN + OUTPUT_LEN
    # Batch-invariant: else texts leave the plain pass's, whose tokens the drafts are.
    model = ModelSettings(batch_invariant=True, max_model_len=tokens + BLOCK_SIZE)
    blocks = SEATS * (tokens // BLOCK_SIZE + 2)
    base = Settings(
        model=model,
        # Simulated prompts are all alike, so neither side may share them.
        cache=CacheSettings(block_size=BLOCK_SIZE, num_kv_blocks=blocks, enable_prefix_caching=False),
        scheduler=SchedulerSettings(
            max_num_batched_tokens=BUDGET, max_num_seqs=SEATS, composition="mix", verification="fixed"
        ),
    )
    return ModelFactory(model, progress=True), base


def _workload(factory: ModelFactory, count: int) -> list[BenchRequest]:
    texts = [factory.encode(prompt.text or "") for prompt in built_in().prompts]
    prompts = cut_to_length("built-in", texts, count, INPUT_LEN).take(count)
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    return [BenchRequest(prompt.token_ids or (), sampling, seed) for seed, prompt in enumerate(prompts)]


def _count(concurrency: int, scale: float) -> int:
    return max(round(CONCURRENCIES[concurrency] * scale), concurrency)


def measure(
    factory: ModelFactory,
    base: Settings,
    workload: Sequence[BenchRequest],
    cases: Sequence[Case],
    args: argparse.Namespace,
) -> tuple[dict[Case, Measured], CostTable]:
    """Run every case `repeats` times, A B C, C B A, with a part of the profile before, between and after."""
    widest = max(cases, key=lambda case: case.num_drafts)
    profiler = factory.profiler(widest.settings(base), temperature=0.0)
    measured = {case: Measured() for case in cases}
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("plain pass", total=len(cases) * args.repeats)
        texts = plain_texts(factory, base, workload, lambda count: None)
        profiler.run(args.profile_seconds)
        for repeat in range(args.repeats):
            for case in cases if repeat % 2 == 0 else reversed(cases):
                progress.update(task, description=str(case))
                _run(factory, base, workload, case, texts, measured[case], args.scale)
                progress.advance(task)
                if case == cases[len(cases) // 2]:
                    profiler.run(args.profile_seconds)
            profiler.run(args.profile_seconds)
    profile = profiler.profile()
    if profile is None:
        raise SystemExit(f"--profile-seconds {args.profile_seconds:g} are too short on this machine")
    return measured, profile.table(factory.provenance)


def _run(
    factory: ModelFactory,
    base: Settings,
    workload: Sequence[BenchRequest],
    case: Case,
    texts: KnownTexts,
    measured: Measured,
    scale: float,
) -> None:
    system = factory.build(case.settings(base), texts, LUCK_SEED)
    load = InProcessLoad(system.engine, system.recorder)
    load.run(workload[:NUM_WARMUPS], all_at_once(NUM_WARMUPS))
    arrivals = _arrivals(case, scale)
    share = CpuShare()
    record = load.run(workload[: len(arrivals.times)], arrivals)
    measured.others.append(share.of_others())
    system.engine.close()
    measured.figures.append(Figures.of(summarize(record)))
    measured.records.append(record)


def _arrivals(case: Case, scale: float) -> Arrivals:
    return closed_loop(_count(case.concurrency, scale), case.concurrency)


def predict(
    factory: ModelFactory, base: Settings, workload: Sequence[BenchRequest], case: Case, table: CostTable, scale: float
) -> tuple[list[tuple[int, ...]], Figures]:
    """The rows of each simulated step, and the figures."""
    arrivals = _arrivals(case, scale)
    chance = conditional_acceptance(ACCEPTANCE_LENGTHS[case.num_drafts], case.num_drafts)
    requests = [SimulatedRequest(len(r.prompt_token_ids), OUTPUT_LEN) for r in workload[: len(arrivals.times)]]
    config = _config(factory, case.settings(base))
    run = simulate(Simulation(config, table, GeometricAcceptance(chance, LUCK_SEED), requests, arrivals))
    return _rows(run.record), Figures.of(summarize(run.record))


def _config(factory: ModelFactory, settings: Settings) -> SchedulerConfig:
    return factory.config(settings)


def _rows(run: RunRecord) -> list[tuple[int, ...]]:
    return [(step.num_target_rows, step.num_prefill_rows, step.num_running) for step in run.steps]


def bars(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """(mean, largest) absolute error of throughput, TPOT and TTFT."""
    by_figure = zip(*(outcome.errors for outcome in outcomes), strict=True)
    return [(statistics.fmean(map(abs, errors)), max(map(abs, errors))) for errors in by_figure]


def print_outcomes(console: Console, outcomes: Sequence[Outcome], table: CostTable) -> None:
    shown = Table(title="measured / predicted (error)", title_justify="left", box=None, pad_edge=False)
    for column in HEADINGS:
        shown.add_column(column, justify="right", no_wrap=True)
    for outcome in outcomes:
        shown.add_row(*_cells(outcome))
    console.print(shown)
    for line in _summary(outcomes, table):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


HEADINGS = ("users", "K", "budget", "tokens/s", "TPOT, ms", "TTFT, ms", "spread", "others", "same steps")


def _cells(outcome: Outcome) -> list[str]:
    case, measured = outcome.case, outcome.measured
    pairs = zip(measured.middle.as_tuple(), outcome.predicted.as_tuple(), outcome.errors, strict=True)
    figures = [f"{ours:.1f} / {theirs:.1f} ({error:+.1%})" for ours, theirs, error in pairs]
    others = f"{statistics.median(measured.others):.0%}"
    same = "yes" if outcome.same_steps else "no"
    return [
        str(case.concurrency),
        str(case.num_drafts),
        case.draft_budget,
        *figures,
        f"{measured.spread:.0%}",
        others,
        same,
    ]


def _summary(outcomes: Sequence[Outcome], table: CostTable) -> list[str]:
    lines = []
    for name, (mean, worst) in zip(("throughput", "median TPOT", "median TTFT"), bars(outcomes), strict=True):
        verdict = "met" if mean <= MEAN_BAR and worst <= WORST_BAR else "missed"
        lines.append(
            f"{name}: mean |error| {mean:.1%} (bar {MEAN_BAR:.0%}), worst {worst:.1%} ({WORST_BAR:.0%}): {verdict}"
        )
    origin = table.provenance
    lines.append(f"{origin.model} on {origin.machine}, {origin.date}; {'; '.join(origin.notes)}")
    return lines


def markdown(outcomes: Sequence[Outcome], table: CostTable) -> str:
    """The table and the summary."""
    rows = [HEADINGS, tuple("--:" for _ in HEADINGS), *(tuple(_cells(outcome)) for outcome in outcomes)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"* {line}" for line in _summary(outcomes, table))]) + "\n"


def _as_json(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    return [
        {
            "concurrency": outcome.case.concurrency,
            "draft_budget": outcome.case.draft_budget,
            "num_speculative_tokens": outcome.case.num_drafts,
            "measured": [figures.as_tuple() for figures in outcome.measured.figures],
            "predicted": outcome.predicted.as_tuple(),
            "errors": outcome.errors,
            "others": outcome.measured.others,
            "same_steps": outcome.same_steps,
        }
        for outcome in outcomes
    ]


if __name__ == "__main__":
    raise SystemExit(main())
