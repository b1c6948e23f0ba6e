"""What tuning says, in computed sentences and numbers: the one source of its terminal text, its JSON and its page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from slipstream.lab.tune_limits import Limit, duration_in_words
from slipstream.lab.tune_result import Trial, Tuning
from slipstream.lab.tune_subject import Subject

MOST_ROWS = 8
"""Rows of the Pareto front in the terminal; the page and the JSON have all."""


@dataclass(frozen=True, slots=True)
class TuneReport:
    """A tuning and what it was of. `seed`: of the search."""

    subject: Subject
    tuning: Tuning
    seed: int

    @property
    def best_name(self) -> str:
        """What the best trial is called."""
        return "best" if self.tuning.best.keeps_limits else "nearest"

    def verdict(self) -> list[str]:
        """What was found, and what it gives against the start."""
        tuning = self.tuning
        best, start = tuning.best, tuning.start
        tried = f"{len(tuning.trials)} settings were simulated"
        if tuning.is_exhaustive:
            tried += ", all there are"
        if tuning.refusals:
            first = tuning.refusals[0].reason.partition(". ")[0].rstrip(".")
            tried += f"; {len(tuning.refusals)} more cannot work (the first: {first})"
        sentences = [tried + "."]
        if not best.keeps_limits:
            misses = ", ".join(
                f"{limit.label} {limit.in_words(best.value(limit))} instead of {limit.in_words(limit.bound)} "
                f"({miss:.1%} too {'little' if limit.time is None else 'much'})"
                for limit, miss in zip(tuning.limits, best.misses, strict=True)
                if miss > 0
            )
            sentences.append(f"No setting that was tried keeps the limits. The nearest misses: {misses}.")
        elif best is start:
            sentences.append("Nothing that was tried is better than the starting settings.")
        if best is not start:
            throughput, tpot, ttft = best.ratios(start)
            sentences.append(
                f"Against the starting settings: throughput x {throughput:.3g}, TPOT x {tpot:.2g}, TTFT x {ttft:.2g}"
                + (" (geometric means over the workloads)." if len(self.subject.cases) > 1 else ".")
            )
        if best.keeps_limits and not start.keeps_limits:
            sentences.append("The starting settings do not keep the limits.")
        return [
            *sentences,
            *(self._binding(place, limit) for place, limit in enumerate(tuning.limits)),
            *self._edges(),
        ]

    def _edges(self) -> list[str]:
        """Where the best setting is the largest that was tried, and a larger one could be better still."""
        sentences = []
        for name in ("num_speculative_tokens", "max_num_batched_tokens", "max_num_seqs"):
            value, values = getattr(self.tuning.best.candidate, name), self.tuning.space.values[name]
            if name == "max_num_seqs" and value >= self.subject.most_at_once:
                continue
            if len(values) > 1 and value == values[-1]:
                sentences.append(f"{name} {value} is the largest that was tried; --search {name}=A,B,C tries others.")
        return sentences

    def _binding(self, place: int, limit: Limit) -> str:
        best = self.tuning.best
        worst = " in the worst workload" if len(self.subject.cases) > 1 else ""
        kept = f"{limit.flag} {limit.in_words(limit.bound)}: {limit.in_words(best.value(limit))}{worst}"
        if not best.keeps_limits:
            return kept + (", missed." if best.misses[place] > 0 else ", kept.")
        without = self.tuning.without(place)
        if without is None:
            return kept + "; it does not bind."
        return kept + f"; it binds: without it {without.throughput:.0f} tok/s were found."

    def flags(self) -> list[str]:
        """The best settings, to paste."""
        return self.subject.flags(self.tuning.best.candidate)

    def notes(self) -> list[str]:
        """What the figures rest on."""
        measured, modelled = self.subject.measured_throughput, self.tuning.start.throughput
        beside = []
        if measured is not None:
            beside.append(
                f"For the starting settings the model gives {modelled:.4g} tok/s, where {measured:.4g} were measured."
            )
        return ["These figures are modelled, not measured.", *beside, *self.subject.notes(self.tuning.best.candidate)]

    def to_json(self) -> dict[str, Any]:
        """Every number, JSON-ready."""
        tuning = self.tuning
        return {
            "title": self.subject.title,
            "workloads": list(self.subject.cases),
            "limits": [{"flag": limit.flag, "bound": limit.bound} for limit in tuning.limits],
            "keeps_limits": tuning.best.keeps_limits,
            "seed": self.seed,
            "is_exhaustive": tuning.is_exhaustive,
            "flags": self.flags(),
            "start": self._trial(tuning.start),
            "best": self._trial(tuning.best),
            "pareto": [self._trial(trial) for trial in tuning.pareto],
            "trials": [self._trial(trial) for trial in tuning.trials],
            "refused": [{**dataclasses.asdict(r.candidate), "reason": r.reason} for r in tuning.refusals],
            "findings": self.verdict(),
            "notes": self.notes(),
        }

    def _trial(self, trial: Trial) -> dict[str, Any]:
        return {
            "settings": dataclasses.asdict(trial.candidate),
            "output_throughput": trial.throughput,
            "tpot_ms": trial.tpot_ms,
            "ttft_ms": trial.ttft_ms,
            "keeps_limits": trial.keeps_limits,
            "limits": {limit.flag: trial.value(limit) for limit in self.tuning.limits},
            "workloads": [
                {"workload": case, **result.to_json()}
                for case, result in zip(self.subject.cases, trial.results, strict=True)
            ],
        }


def columns_of(limits: Sequence[Limit], num_cases: int) -> list[str]:
    """Headings of `row_of`."""
    return ["K", "B", "S", "rules", "tok/s", "TPOT", "TTFT", *(limit.label for limit in _shown(limits, num_cases))]


def row_of(trial: Trial, limits: Sequence[Limit]) -> list[str]:
    """A trial's settings, its medians, and what its limits are about."""
    candidate = trial.candidate
    return [
        str(candidate.num_speculative_tokens),
        str(candidate.max_num_batched_tokens),
        str(candidate.max_num_seqs),
        f"{candidate.composition}, {candidate.verification}",
        f"{trial.throughput:.0f}" if trial.throughput >= 100 else f"{trial.throughput:.3g}",
        _median(trial, "tpot", limits),
        _median(trial, "ttft", limits),
        *(_marked(limit, trial.value(limit)) for limit in _shown(limits, len(trial.results))),
    ]


def _shown(limits: Sequence[Limit], num_cases: int) -> list[Limit]:
    """Those that have no column yet: the medians are of the one workload, or means over several."""
    has_column = {(None, "mean"), *((("tpot", "p50"), ("ttft", "p50")) if num_cases == 1 else ())}
    return [limit for limit in limits if (limit.time, limit.statistic) not in has_column]


def _median(trial: Trial, time: str, limits: Sequence[Limit]) -> str:
    """A median, marked where it is what a limit is about and misses it."""
    ms = trial.tpot_ms if time == "tpot" else trial.ttft_ms
    if len(trial.results) == 1:
        for limit in limits:
            if (limit.time, limit.statistic) == (time, "p50"):
                return _marked(limit, ms)
    return duration_in_words(ms)


def _marked(limit: Limit, value: float) -> str:
    return limit.in_words(value) + (" !" if limit.miss(value) > 0 else "")


def print_report(console: Console, report: TuneReport) -> None:
    """Table, findings, flags, and what it all rests on."""

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    tuning = report.tuning
    say(report.subject.title, "bold")
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in columns_of(tuning.limits, len(report.subject.cases)):
        table.add_column(column, justify="left" if column == "rules" else "right")
    table.add_row("start", *row_of(tuning.start, tuning.limits))
    if tuning.best is not tuning.start:
        table.add_row(report.best_name, *row_of(tuning.best, tuning.limits), style="bold")
    others = [trial for trial in tuning.pareto if trial not in (tuning.start, tuning.best)]
    table.add_section()
    for trial in thinned(others, MOST_ROWS):
        table.add_row("Pareto", *row_of(trial, tuning.limits))
    console.print(table)
    say(
        "TPOT and TTFT are medians over the requests; Pareto: nothing within the limits beats it in both tok/s and TPOT"
    )
    if any(not trial.keeps_limits for trial in (tuning.start, tuning.best)):
        say("!: limit missed")
    for sentence in report.verdict():
        say(f"* {sentence}")
    say("Best settings, the others staying as they are:" if tuning.best.keeps_limits else "The nearest:", "bold")
    say(" \\\n".join(f"  {flag}" for flag in report.flags()))
    say("What this rests on:", "bold")
    for sentence in report.notes():
        say(f"* {sentence}")


def thinned(trials: Sequence[Trial], most: int) -> list[Trial]:
    """At most so many, evenly, both ends included."""
    if len(trials) <= most:
        return list(trials)
    return [trials[round(i * (len(trials) - 1) / (most - 1))] for i in range(most)]
