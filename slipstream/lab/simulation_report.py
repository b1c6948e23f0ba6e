"""What a simulation says, in numbers and computed sentences: the one source of its table, its JSON and its page."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slipstream.lab.report_figures import FIGURES, Figure
from slipstream.lab.scenario import Variant
from slipstream.lab.scenario_run import CaseResult, ScenarioResult

SAME_WITHIN = 0.05
"""Gains that differ by less are called about equal."""


class CellKind(StrEnum):
    """FITTED: chosen to give the published figure. PREDICTED: compared with one and not fitted. PLAIN: neither."""

    FITTED = "fitted"
    PREDICTED = "predicted"
    PLAIN = "simulated"


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of one case. `published`: what was measured elsewhere, None where nothing was."""

    figure: Figure
    value: float | None
    kind: CellKind = CellKind.PLAIN
    published: float | None = None

    @property
    def error(self) -> float | None:
        """(value - published) / published."""
        if self.value is None or self.published is None:
            return None
        return self.value / self.published - 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One case. `fitted_value`: of the fit's parameter for this workload, None without a fit."""

    case: CaseResult
    cells: tuple[Cell, ...]
    fitted_value: float | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """A variant over its baseline: ratios of a figure, one per workload."""

    variant: str
    baseline: str
    figure: Figure
    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)


@dataclass(frozen=True, slots=True)
class Miss:
    """Median over the workloads of |error| of a predicted figure."""

    variant: str
    figure: Figure
    median_error: float
    largest_error: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown."""

    result: ScenarioResult
    rows: tuple[Row, ...]
    gains: tuple[Gain, ...]
    misses: tuple[Miss, ...]

    def findings(self) -> list[str]:
        """Sentences, each computed from this run."""
        return [*_gain_sentences(self.gains), *(_miss_sentence(self.misses, v) for v in _variants(self.misses))]

    def to_json(self) -> dict[str, Any]:
        """Every number, JSON-ready."""
        scenario = self.result.scenario
        fit, published = scenario.fit, scenario.published
        return {
            "scenario": scenario.name,
            "title": scenario.title,
            "machine": scenario.machine.in_words(),
            "acceptance": scenario.acceptance.in_words(),
            "assumptions": list(scenario.assumptions),
            "published": None if published is None else {"source": published.source, **published.rows},
            "fit": None
            if fit is None
            else {
                "variant": fit.variant,
                "parameter": fit.parameter,
                "figures": list(fit.figures),
                "values": dict(fit.values),
            },
            "cases": [
                {
                    "workload": row.case.workload.name,
                    "variant": row.case.variant.name,
                    "fitted_value": row.fitted_value,
                    "figures": {
                        cell.figure.name: {
                            "value": cell.value,
                            "kind": cell.kind.value,
                            "published": cell.published,
                            "error": cell.error,
                        }
                        for cell in row.cells
                    },
                    **row.case.result.to_json(),
                }
                for row in self.rows
            ],
            "gains": [
                {
                    "variant": gain.variant,
                    "baseline": gain.baseline,
                    "figure": gain.figure.name,
                    "median": gain.median,
                    "ratios": list(gain.ratios),
                }
                for gain in self.gains
            ],
            "median_errors": [
                {
                    "variant": miss.variant,
                    "figure": miss.figure.name,
                    "median_error": miss.median_error,
                    "largest_error": miss.largest_error,
                }
                for miss in self.misses
            ],
            "findings": self.findings(),
        }


def report_of(result: ScenarioResult) -> Report:
    """Everything that is shown of a run."""
    scenario = result.scenario
    rows = tuple(_row(result, case) for case in result.cases)
    gains = tuple(
        gain
        for variant in scenario.variants
        if (baseline := baseline_of(result, variant)) is not None
        for figure in FIGURES
        if figure.more_is_better is not None and (gain := _gain(result, variant.name, baseline, figure)) is not None
    )
    misses = tuple(
        _miss(variant.name, figure, errors)
        for variant in scenario.variants
        for index, figure in enumerate(FIGURES)
        if (errors := _predicted_errors(rows, variant.name, index))
    )
    return Report(result, rows, gains, misses)


def baseline_of(result: ScenarioResult, variant: Variant) -> str | None:
    """What a variant is compared with: the one it names, or the first; None for the first itself."""
    variants = result.scenario.variants
    if variant.baseline is not None:
        return variant.baseline
    has_own = any(other.baseline is not None for other in variants)
    return None if has_own or variant is variants[0] else variants[0].name


def _row(result: ScenarioResult, case: CaseResult) -> Row:
    scenario = result.scenario
    name, fit = case.variant.name, scenario.fit
    published = {} if scenario.published is None else scenario.published.rows.get(name, {})
    cells = []
    for figure in FIGURES:
        kind = CellKind.PLAIN
        if figure.name in published:
            is_fitted = fit is not None and fit.variant == name and figure.name in fit.figures
            kind = CellKind.FITTED if is_fitted else CellKind.PREDICTED
        cells.append(Cell(figure, figure.number(case.result), kind, published.get(figure.name)))
    return Row(case, tuple(cells), None if fit is None else fit.values.get(case.workload.name))


def _gain(result: ScenarioResult, variant: str, baseline: str, figure: Figure) -> Gain | None:
    ratios = []
    for case in result.of_variant(variant):
        new = figure.number(case.result)
        old = figure.number(result.case(case.workload.name, baseline).result)
        if new is not None and old:
            ratios.append(new / old)
    return Gain(variant, baseline, figure, tuple(ratios)) if ratios else None


def _predicted_errors(rows: tuple[Row, ...], variant: str, index: int) -> list[float]:
    cells = [row.cells[index] for row in rows if row.case.variant.name == variant]
    return [abs(cell.error) for cell in cells if cell.kind is CellKind.PREDICTED and cell.error is not None]


def _miss(variant: str, figure: Figure, errors: list[float]) -> Miss:
    return Miss(variant, figure, statistics.median(errors), max(errors))


def _variants(misses: tuple[Miss, ...]) -> list[str]:
    return list(dict.fromkeys(miss.variant for miss in misses))


def _gain_sentences(gains: tuple[Gain, ...]) -> list[str]:
    sentences = []
    throughputs = [gain for gain in gains if gain.figure.name == "output_throughput"]
    for gain in throughputs:
        others = [
            f"{other.figure.label.split()[0]} x {other.median:.2f}"
            for other in gains
            if other.variant == gain.variant and other is not gain
        ]
        spread = ""
        if len(gain.ratios) > 1:
            spread = f" (median of {len(gain.ratios)} workloads; {min(gain.ratios):.2f} to {max(gain.ratios):.2f})"
        sentences.append(
            f"{gain.variant} over {gain.baseline}: output throughput x {gain.median:.2f}{spread}"
            + "".join(f", {other}" for other in others)
            + "."
        )
    for gain in throughputs[1:]:
        first = throughputs[0]
        if gain.baseline == first.baseline:
            continue
        ratio = gain.median / first.median
        word = "about the same" if abs(ratio - 1) <= SAME_WITHIN else "smaller" if ratio < 1 else "larger"
        sentences.append(
            f"The gain of {gain.variant!r} over {gain.baseline!r} is {word}: x {gain.median:.2f}, where "
            f"{first.variant!r} over {first.baseline!r} gives x {first.median:.2f}."
        )
    return sentences


def _miss_sentence(misses: tuple[Miss, ...], variant: str) -> str:
    parts = [f"{m.figure.label} {m.median_error:.0%}" for m in misses if m.variant == variant]
    return f"Predicted {variant} against published, median error over the workloads: {', '.join(parts)}."
