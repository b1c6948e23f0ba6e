"""A/B comparison: one workload, several settings, interleaved in one process, and a check that the text is the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slipstream.bench.arrivals import Arrivals, all_at_once
from slipstream.bench.forced import FORCED_NOTE, KnownText, KnownTexts
from slipstream.bench.in_process import BenchRequest, InProcessLoad, choice_id_of
from slipstream.bench.metrics import BenchResult, summarize
from slipstream.bench.records import RequestRecord, RunRecord
from slipstream.bench.systems import SystemFactory
from slipstream.bench.variation import Variation
from slipstream.config import SchedulerSettings, Settings
from slipstream.simulation.record_to import RecordTo

NUM_WARMUP_REQUESTS = 2
PLAIN_PASS_SEATS = 32


@dataclass(frozen=True, slots=True)
class Progress:
    """Who wants to hear how a comparison goes on.

    Attributes:
        begin: a pass of so many output tokens starts. advance: it gave that many.
    """

    begin: Callable[[str, int], None] = field(default=lambda title, num_tokens: None)
    advance: Callable[[int], None] = field(default=lambda num_tokens: None)


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Where a run's text first left that of the first run.

    Attributes:
        value, repeat: the run. index: the request. position: output position of the first other token.
    """

    value: str
    repeat: int
    index: int
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results by variant.

    Attributes:
        results: one list per value, one entry per repeat.
        differences: empty when every run of every variant gave the same text.
        num_left_plain: requests whose text is not the plain pass's, None without a plain pass. Forced drafts are
            wrong from there on.
    """

    variation: Variation
    results: tuple[list[BenchResult], ...]
    differences: list[TextDifference]
    num_left_plain: int | None
    notes: list[str]

    @property
    def same_text(self) -> bool:
        return not self.differences

    @property
    def failed(self) -> int:
        return sum(result.failed for results in self.results for result in results)

    def medians(self, number: Callable[[BenchResult], float | None]) -> list[float | None]:
        """The middle over repeats of one figure, per variant; None where a run lacks it."""
        medians: list[float | None] = []
        for results in self.results:
            values = [number(result) for result in results]
            known = [value for value in values if value is not None]
            medians.append(statistics.median(known) if known and len(known) == len(values) else None)
        return medians

    def to_json(self) -> dict[str, Any]:
        """Each variant's runs with the keys of `BenchResult.to_json`, and the verdict on the text."""
        return {
            "vary": self.variation.name,
            "values": list(self.variation.values),
            "same_text": self.same_text,
            "text_differences": [
                {"value": d.value, "repeat": d.repeat, "request": d.index, "position": d.position}
                for d in self.differences
            ],
            "requests_that_left_the_plain_text": self.num_left_plain,
            "notes": self.notes,
            "runs": {
                value: [result.to_json() for result in results]
                for value, results in zip(self.variation.values, self.results, strict=True)
            },
        }


def run_comparison(
    factory: SystemFactory,
    base: Settings,
    variation: Variation,
    workload: Sequence[BenchRequest],
    *,
    arrivals: Arrivals | None = None,
    repeats: int = 1,
    luck_seed: int = 0,
    progress: Progress | None = None,
    record: RecordTo | None = None,
) -> Comparison:
    """Run every variant `repeats` times, in turn: A B, B A, A B, so that a drifting machine favours nobody.

    `record`: where each variant is recorded, all its repeats in one file named after its value.

    Where a variant forces acceptance, an untimed plain pass first gives the text that drafts are made of.
    """
    progress = progress or Progress()
    arrivals = arrivals or all_at_once(len(workload))
    num_tokens = sum(request.sampling.max_tokens or 0 for request in workload)
    texts: KnownTexts = {}
    forced = any(s.speculative is not None and s.speculative.method == "forced" for s in variation.settings)
    if forced:
        progress.begin("plain pass (untimed)", num_tokens)
        texts = plain_texts(factory, base, workload, progress.advance)
    systems = [
        factory.build(settings, texts, luck_seed, None if record is None else record.named(value))
        for value, settings in zip(variation.values, variation.settings, strict=True)
    ]
    warmup = workload[:NUM_WARMUP_REQUESTS]
    for system in systems:
        system.mark("warm-up", all_at_once(len(warmup)), is_measured=False)
        InProcessLoad(system.engine, system.recorder).run(warmup, all_at_once(len(warmup)))

    results: tuple[list[BenchResult], ...] = tuple([] for _ in systems)
    reference: RunRecord | None = None
    differences: list[TextDifference] = []
    left_plain: set[int] = set()
    for repeat in range(repeats):
        order = range(len(systems)) if repeat % 2 == 0 else reversed(range(len(systems)))
        for number in order:
            value, system = variation.values[number], systems[number]
            progress.begin(f"{variation.name}={value}, run {repeat + 1} of {repeats}", num_tokens)
            load = InProcessLoad(system.engine, system.recorder, on_tokens=progress.advance)
            system.mark(f"run {repeat + 1} of {repeats}", arrivals)
            run = load.run(workload, arrivals)
            results[number].append(summarize(run))
            reference = reference or run
            differences += differences_between(reference, run, value, repeat)
            left_plain |= {
                record.index
                for record in run.requests
                if forced and list(texts[choice_id_of(record.index)].token_ids) != record.token_ids
            }
    for system in systems:
        system.engine.close()
    notes = [FORCED_NOTE] if forced else []
    if left_plain:
        notes.append(
            f"{len(left_plain)} requests left the text of the plain pass; their drafts are wrong from there on, "
            "so acceptance is lower than forced (batch_invariant keeps texts equal)"
        )
    return Comparison(variation, results, differences, len(left_plain) if forced else None, notes)


def plain_texts(
    factory: SystemFactory, base: Settings, workload: Sequence[BenchRequest], on_tokens: Callable[[int], None]
) -> KnownTexts:
    """Every request's text without speculation, by the id that drafters see; runs in its own, larger batches."""
    seats = min(len(workload), PLAIN_PASS_SEATS)
    scheduler = SchedulerSettings(max_num_seqs=seats, max_num_batched_tokens=4 * seats)
    system = factory.build(replace(base, speculative=None, scheduler=scheduler), {}, 0)
    run = InProcessLoad(system.engine, system.recorder, on_tokens=on_tokens).run(workload, all_at_once(len(workload)))
    return {choice_id_of(record.index): KnownText(record.index, record.token_ids) for record in run.requests}


def differences_between(reference: RunRecord, run: RunRecord, value: str, repeat: int) -> list[TextDifference]:
    """One entry per request whose ids differ, a shorter or failed answer included."""
    return [
        TextDifference(value, repeat, ours.index, _first_difference(theirs, ours))
        for theirs, ours in zip(reference.requests, run.requests, strict=True)
        if theirs.token_ids != ours.token_ids
    ]


def _first_difference(left: RequestRecord, right: RequestRecord) -> int:
    pairs = zip(left.token_ids, right.token_ids, strict=False)
    shorter = min(len(left.token_ids), len(right.token_ids))
    return next((position for position, (a, b) in enumerate(pairs) if a != b), shorter)
