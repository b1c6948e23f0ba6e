"""From results to figures: medians, spreads, ratios against the best peer; as Markdown and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from peers.interleaved import Measured, System
from peers.jobs import Job, Result
from peers.machine import Machine
from peers.workload import PREFILL
from slipstream.training.repetition import loop_start, repeated_share

COMPARED_TOKENS = 64
REFERENCE = "transformers"
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """Rates of one system on one job, tokens per second, one for each repeat."""

    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """Largest over smallest, less 1."""
        return max(self.rates) / min(self.rates) - 1.0

    def __str__(self) -> str:
        if len(self.rates) == 1:
            return f"{self.median:.1f}"
        return f"{self.median:.1f} ({min(self.rates):.1f} to {max(self.rates):.1f})"


@dataclass(frozen=True, slots=True)
class Row:
    """One job.

    Attributes:
        figures: by system; those that failed are absent. failures: why, by system.
        best_peer: the fastest; None where no peer ran. ratios: of each system that is no peer, its median over that of
            the best peer.
        acceptance_lengths: of the systems that draft, mean tokens of a decode step, median of the repeats.
    """

    job: Job
    figures: Mapping[str, Figure]
    failures: Mapping[str, str]
    best_peer: str | None
    ratios: Mapping[str, float]
    acceptance_lengths: Mapping[str, float]

    @property
    def is_prefill(self) -> bool:
        """Whether rates are of prompt tokens."""
        return self.job.name == PREFILL


@dataclass(frozen=True, slots=True)
class Texts:
    """What a system said, over its greedy answers to jobs that ignore EOS.

    Attributes:
        num_answers, num_loops: answers, and those that hold a loop. repeated: mean share of repeated 4-grams.
        same: mean share of the first COMPARED_TOKENS tokens before the first that differs from REFERENCE's answer;
            None without one. After it the texts go their own ways, so this is a lower bound of greedy agreement.
    """

    num_answers: int
    num_loops: int
    repeated: float
    same: float | None


def rows_of(systems: Sequence[System], jobs: Sequence[Job], measured: Measured) -> list[Row]:
    """One row per job, in their order."""
    return [_row(systems, number, job, measured) for number, job in enumerate(jobs)]


def _row(systems: Sequence[System], number: int, job: Job, measured: Measured) -> Row:
    results = measured.results[number]
    figures = {
        system.name: Figure(tuple(_rate(job, result) for result in results[system.name]))
        for system in systems
        if results.get(system.name)
    }
    failures = measured.errors | {
        name: reason for (failed, name), reason in measured.failures.items() if failed == number
    }
    peers = [system.name for system in systems if system.is_peer and system.name in figures]
    best = max(peers, key=lambda name: figures[name].median, default=None)
    ratios = {
        system.name: figures[system.name].median / figures[best].median
        for system in systems
        if best is not None and not system.is_peer and system.name in figures
    }
    lengths = {
        name: statistics.median(known)
        for name, repeats in results.items()
        if (known := [result.acceptance_length for result in repeats if result.acceptance_length is not None])
    }
    return Row(job, figures, failures, best, ratios, lengths)


def _rate(job: Job, result: Result) -> float:
    return result.prompt_tokens_per_s if job.name == PREFILL else result.tokens_per_s


def texts_of(jobs: Sequence[Job], measured: Measured) -> dict[str, Texts]:
    """By system, of the first repeat."""
    greedy = [n for n, job in enumerate(jobs) if job.ignore_eos and not job.temperature and job.name != PREFILL]
    answers: dict[str, list[tuple[list[int], list[int] | None]]] = {}
    for number in greedy:
        first = {name: repeats[0].token_ids for name, repeats in measured.results[number].items() if repeats}
        for name, texts in first.items():
            others = first.get(REFERENCE, [None] * len(texts))
            answers.setdefault(name, []).extend(zip(texts, others, strict=True))
    return {name: _texts(pairs, name != REFERENCE) for name, pairs in answers.items()}


def _texts(pairs: Sequence[tuple[list[int], list[int] | None]], is_compared: bool) -> Texts:
    arrays = [np.array(text, np.int32) for text, _ in pairs]
    same = [_same(text, other) for text, other in pairs if other is not None] if is_compared else []
    return Texts(
        num_answers=len(pairs),
        num_loops=sum(loop_start(array) is not None for array in arrays),
        repeated=statistics.fmean(repeated_share(array) for array in arrays),
        same=statistics.fmean(same) if same else None,
    )


def _same(text: Sequence[int], other: Sequence[int]) -> float:
    length = min(len(text), len(other), COMPARED_TOKENS)
    if not length:
        return 1.0
    return next((k for k in range(length) if text[k] != other[k]), length) / length


def markdown(
    systems: Sequence[System], rows: Sequence[Row], measured: Measured, texts: Mapping[str, Texts], machine: Machine
) -> str:
    """The whole report."""
    parts = [
        f"{machine.cpu}, {machine.num_cores} cores, {', '.join(machine.instruction_sets)}; {machine.system}.",
        "Tokens per second, medians (smallest to largest) of the repeats; the best peer is bold.",
    ]
    if not measured.is_complete:
        parts.append("**The time ended before the last repeat.**")
    for name in dict.fromkeys(row.job.name for row in rows):
        group = [row for row in rows if row.job.name == name]
        parts.append(f"## {name[:1].upper()}{name[1:]}\n\n{_group(systems, group)}")
    parts.append(f"## Systems\n\n{_systems(systems, rows, measured)}")
    if texts:
        parts.append(f"## Texts\n\n{_texts_table(texts)}")
    failures = {(name, reason) for row in rows for name, reason in row.failures.items()}
    if failures:
        lines = [f"* {name}: {reason}" for name, reason in sorted(failures)]
        parts.append("## Failures\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _group(systems: Sequence[System], rows: Sequence[Row]) -> str:
    ours = [system.name for system in systems if not system.is_peer]
    drafting = [name for name in ours if any(row.acceptance_lengths.get(name, 1.0) > 1.0 for row in rows)]
    head = ["concurrency", "prompts", "prompt tokens, mean" if rows[0].is_prefill else "new tokens, at most"]
    head += [system.name for system in systems]
    head += [f"{name}, ratio" for name in ours]
    head += [f"{name}, acceptance length" for name in drafting]
    lines = []
    for row in rows:
        job = row.job
        mean = sum(map(len, job.prompts)) / len(job.prompts)
        cells = [
            str(job.concurrency),
            str(len(job.prompts)),
            f"{mean:.0f}" if row.is_prefill else str(job.max_new_tokens),
        ]
        for system in systems:
            text = str(row.figures[system.name]) if system.name in row.figures else ABSENT
            if system.name in row.failures:
                text = "failed"
            cells.append(f"**{text}**" if system.name == row.best_peer else text)
        cells += [f"{row.ratios[name]:.2f}" if name in row.ratios else ABSENT for name in ours]
        cells += [
            f"{row.acceptance_lengths[name]:.2f}" if name in row.acceptance_lengths else ABSENT for name in drafting
        ]
        lines.append(cells)
    return table(head, lines)


def _systems(systems: Sequence[System], rows: Sequence[Row], measured: Measured) -> str:
    head = ["", "versions", "loads in, s", "ready in, s", "resident at most, MB", "KV pool then, MB"]
    lines = []
    for system in systems:
        if system.name not in measured.loaded:
            lines.append([system.name, f"failed: {measured.errors.get(system.name, ABSENT)}", *[ABSENT] * 4])
            continue
        loaded, ready_s = measured.loaded[system.name]
        versions = ", ".join(f"{package} {version}" for package, version in loaded.versions.items())
        largest = largest_result(measured, system.name)
        memory = [None, None] if largest is None else [largest.resident_bytes, largest.kv_bytes]
        cells = [ABSENT if size is None else f"{size / 1e6:.0f}" for size in memory]
        lines.append([system.name, versions, f"{loaded.load_s:.1f}", f"{ready_s:.1f}", *cells])
    return table(head, lines)


def largest_result(measured: Measured, name: str) -> Result | None:
    """The result after which the system held most memory; None where it is not known."""
    known = [result for job in measured.results for result in job.get(name, []) if result.resident_bytes is not None]
    return max(known, key=lambda result: result.resident_bytes or 0, default=None)


def _texts_table(texts: Mapping[str, Texts]) -> str:
    head = ["", "answers", "with a loop", "repeated 4-grams", f"same first {COMPARED_TOKENS} tokens as {REFERENCE}"]
    lines = [
        [
            name,
            str(found.num_answers),
            str(found.num_loops),
            f"{found.repeated:.2f}",
            ABSENT if found.same is None else f"{found.same:.0%}",
        ]
        for name, found in texts.items()
    ]
    return table(head, lines)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks in cells are replaced."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def as_json(
    systems: Sequence[System], rows: Sequence[Row], measured: Measured, texts: Mapping[str, Texts], machine: Machine
) -> dict[str, Any]:
    """Every figure, each repeat's included; token ids of answers are not in it."""
    return {
        "machine": asdict(machine),
        "is_complete": measured.is_complete,
        "systems": {system.name: _system_json(system.name, measured) for system in systems},
        "jobs": [_row_json(row, measured.results[number]) for number, row in enumerate(rows)],
        "texts": {name: asdict(found) for name, found in texts.items()},
    }


def _system_json(name: str, measured: Measured) -> dict[str, Any]:
    if name not in measured.loaded:
        return {"error": measured.errors.get(name)}
    loaded, ready_s = measured.loaded[name]
    return asdict(loaded) | {"ready_s": ready_s}


def _row_json(row: Row, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    job = row.job
    return {
        "name": job.name,
        "concurrency": job.concurrency,
        "num_prompts": len(job.prompts),
        "num_prompt_tokens": sum(map(len, job.prompts)),
        "max_new_tokens": job.max_new_tokens,
        "ignore_eos": job.ignore_eos,
        "temperature": job.temperature,
        "best_peer": row.best_peer,
        "ratios": dict(row.ratios),
        "acceptance_lengths": dict(row.acceptance_lengths),
        "failures": dict(row.failures),
        "unit": "prompt tokens per second" if row.is_prefill else "output tokens per second",
        "systems": {
            name: {
                "median": figure.median,
                "spread": figure.spread,
                "rates": figure.rates,
                "repeats": [
                    {key: value for key, value in asdict(result).items() if key != "token_ids"}
                    | {"num_tokens": result.num_tokens}
                    for result in results[name]
                ],
            }
            for name, figure in row.figures.items()
        },
    }
