"""Predicts the published V4-Pro sweep on eight B300 from two of its columns, with the scheduler itself in the loop.

    python benchmarks/published_curves.py

Fitted: the machine (none, k = 7) and the part of the concurrency that decodes. Predicted: k = 1, 3, 5 and adaptive, and
which K is best. Assumptions are printed, and explained in docs/machine-models.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from slipstream.bench.arrivals import closed_loop
from slipstream.bench.metrics import summarize
from slipstream.config import SchedulerConfig
from slipstream.lab.simulate import SimulatedRequest, SimulatedRun, Simulation, simulate
from slipstream.scheduler.costs import StepShape
from slipstream.scheduler.verification import offer_of
from slipstream.scheduler.verify_rows import best_verify_rows
from slipstream.simulation.machines.v4_pro import (
    ADAPTIVE,
    CONCURRENCIES,
    FIXED,
    MOST_DRAFTS,
    Point,
    fit_v4_pro,
    fitted_occupancy,
    golden_survivals,
)
from slipstream.simulation.mixture_acceptance import MixtureAcceptance, acceptance_by_depth, conditional_chances

MAX_ERROR, MAX_LOSS = 0.10, 0.03
FITTED = (0, MOST_DRAFTS)
DIFFICULTY_SPREAD, CALIBRATION_ERROR = 1.0, 0.03
ASSUMPTIONS = (
    "a request decodes steadily: what prompts, first tokens and the ends of a run cost is in the occupancy, "
    "throughput x TPOT / concurrency, the mean of what none and k = 7 had; lengths are not published",
    "all requests are alike, and accept by depth as the published acceptance lengths of K = 1 ... 5 and 7 say",
    "the drafter's pass costs what its query rows cost: K x requests, on the V4-Flash curve times one fitted factor",
    "the target's pass costs what its rows cost, on one curve without stairs; context plays no part",
    f"adaptive: confidences with a calibration error of {CALIBRATION_ERROR}, positions whose difficulty spreads by "
    f"{DIFFICULTY_SPREAD} logits; the DSpark paper has 0.81 to 0.91 for the area under the ROC curve",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the sweep.

    Attributes:
        column: K, or None for adaptive verification.
        measured, predicted: output tokens per second and TPOT.
    """

    column: int | None
    concurrency: int
    measured: Point
    predicted: Point

    @property
    def is_fitted(self) -> bool:
        return self.column in FITTED

    @property
    def error(self) -> float:
        """Of throughput, signed."""
        return self.predicted.output_throughput / self.measured.output_throughput - 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The best fixed K at a concurrency, as best_verify_rows sees it among the measured ones.

    Attributes:
        loss: measured throughput lost against the best measured K.
    """

    concurrency: int
    chosen: int
    best: int
    loss: float


def predict(column: int | None, concurrency: int, tokens_per_request: int) -> Point:
    """Steady decoding, simulated; the occupancy is applied to its throughput."""
    run = simulate_column(column, concurrency, tokens_per_request)
    tpot = summarize(run.record).tpot_ms
    assert tpot is not None  # requests of many tokens ran
    return Point(fitted_occupancy(concurrency) * concurrency / tpot.median * 1e3, tpot.median)


def simulate_column(column: int | None, concurrency: int, tokens_per_request: int) -> SimulatedRun:
    """The scheduler in front of the fitted machine, a closed loop at this concurrency."""
    most = MOST_DRAFTS if column is None else column
    machine = fit_v4_pro()
    config = SchedulerConfig(
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=8192,
        block_size=64,
        num_kv_blocks=256 * 128,
        enable_prefix_caching=False,
        layout_name="dspark",
        num_speculative_tokens=most,
        draft_capacity=256 * MOST_DRAFTS,
        min_prefill_tokens=1024,
        composition="cost" if column is None else "mix",  # only cost rules trim what is verified
        verification="confidence" if column is None else "fixed",
    )
    num_requests = max(concurrency, 8)
    workload = [SimulatedRequest(1, tokens_per_request)] * num_requests
    return simulate(
        Simulation(
            config, machine, assumed_acceptance(), workload, closed_loop(num_requests, concurrency), costs=machine
        )
    )


def assumed_acceptance() -> MixtureAcceptance:
    """The published lengths by depth, and confidences as assumed."""
    return acceptance_by_depth(
        conditional_chances(golden_survivals()),
        difficulty_spread=DIFFICULTY_SPREAD,
        calibration_error=CALIBRATION_ERROR,
    )


def cells(columns: Iterable[int | None], concurrencies: Iterable[int], tokens_per_request: int) -> list[Cell]:
    """Simulated points of the sweep, column by column."""
    return [
        Cell(column, c, (ADAPTIVE if column is None else FIXED[column])[c], predict(column, c, tokens_per_request))
        for column in columns
        for c in concurrencies
    ]


def choose(concurrency: int) -> Choice:
    """The K of the measured ones that promises the most tokens per millisecond."""
    machine, survivals = fit_v4_pro(), golden_survivals()
    shape = StepShape(concurrency)

    def promise(k: int) -> float:
        offer = offer_of(_alike(survivals[:k], concurrency), may_trim=False)
        draft_ms = machine.draft_ms(concurrency, concurrency * k) if k else 0.0
        return best_verify_rows(offer, machine, shape, concurrency * k, draft_ms=draft_ms).tokens_per_ms

    def measured(k: int) -> float:
        return FIXED[k][concurrency].output_throughput

    chosen, best = max(FIXED, key=promise), max(FIXED, key=measured)
    return Choice(concurrency, chosen, best, 1.0 - measured(chosen) / measured(best))


def roc_area(num_requests: int = 60, num_tokens: int = 400) -> float:
    """How well the assumed drafter's survivals tell accepted drafts from others, over all depths of blocks of K."""
    said, accepted = [], []
    model = assumed_acceptance()
    for index in range(num_requests):
        fate = model.request(index, num_tokens)
        for position in range(num_tokens - MOST_DRAFTS):
            said.append(np.cumprod(fate.confidences(position, MOST_DRAFTS) or []))
            accepted.append(np.arange(MOST_DRAFTS) < fate.num_accepted(position, MOST_DRAFTS))
    truth = np.concatenate(accepted)
    ranks = np.argsort(np.argsort(np.concatenate(said)))[truth]
    num_true, num_false = len(ranks), len(truth) - len(ranks)
    return float((ranks.sum() - num_true * (num_true - 1) / 2) / (num_true * num_false))


def mean_error(predicted: Iterable[Cell]) -> float:
    """Mean absolute error of throughput."""
    return statistics.fmean(abs(cell.error) for cell in predicted)


def _alike(survivals: tuple[float, ...], num_requests: int) -> NDArray[np.float64]:
    return np.tile(np.array(survivals), (num_requests, 1))


def _name(column: int | None) -> str:
    return {None: "adaptive", 0: "none"}.get(column, f"k = {column}")


def main() -> int:
    """Print every cell, the choices and the verdict; 1 when a bar is missed."""
    console = Console(width=120)
    columns = (*FIXED, None)
    found = {
        (cell.column, cell.concurrency): cell
        for c in CONCURRENCIES
        for cell in cells(columns, [c], max(512, min(2048, 65536 // c)))
    }
    console.print(_table("Output tokens/s", found, lambda point: f"{point.output_throughput:.0f}"))
    console.print(_table("Time per output token, ms", found, lambda point: f"{point.tpot_ms:.1f}"))

    predicted = [cell for cell in found.values() if not cell.is_fitted]
    for column in columns:
        mine = [cell for cell in found.values() if cell.column == column]
        worst = max(mine, key=lambda cell: abs(cell.error))
        kind = "fitted   " if column in FITTED else "predicted"
        console.print(f"{kind} {_name(column):8}  mean |error| {mean_error(mine):.1%}, worst {worst.error:+.1%}")
    choices = [choose(c) for c in CONCURRENCIES]
    console.print("\nBest K of those measured, by best_verify_rows:")
    for choice in choices:
        console.print(
            f"  concurrency {choice.concurrency:3}: chooses {choice.chosen}, measured best {choice.best}, "
            f"loses {choice.loss:.1%}"
        )
    console.print("\nAssumed:")
    for assumption in ASSUMPTIONS:
        console.print(f"  * {assumption}")
    console.print(f"    (this drafter: {roc_area():.2f})")
    console.print("\nFitted:")
    for note in fit_v4_pro().provenance.notes:
        console.print(f"  * {note}")
    console.print("  * occupancy " + ", ".join(f"{fitted_occupancy(c):.2f} at {c}" for c in CONCURRENCIES))
    error, loss = mean_error(predicted), max(choice.loss for choice in choices)
    holds = error <= MAX_ERROR and loss <= MAX_LOSS
    console.print(
        f"\n{'PASS' if holds else 'FAIL'}: mean |error| of {len(predicted)} predicted cells {error:.1%} "
        f"(bar {MAX_ERROR:.0%}), largest loss by the chosen K {loss:.1%} (bar {MAX_LOSS:.0%})"
    )
    return 0 if holds else 1


def _table(title: str, found: Mapping[tuple[int | None, int], Cell], figure: Callable[[Point], str]) -> Table:
    """Measured and ours; what is fitted is dim and in brackets."""
    table = Table(title=f"{title}: measured → [bold]predicted[/bold] or [dim](fitted)[/dim]")
    table.add_column("concurrency", justify="right")
    for column in (*FIXED, None):
        table.add_column(_name(column), justify="right", no_wrap=True)
    for c in CONCURRENCIES:
        texts = []
        for column in (*FIXED, None):
            cell = found[column, c]
            ours = (
                f"[dim]({figure(cell.predicted)})[/dim]" if cell.is_fitted else f"[bold]{figure(cell.predicted)}[/bold]"
            )
            texts.append(f"{figure(cell.measured)} → {ours}")
        table.add_row(str(c), *texts)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
