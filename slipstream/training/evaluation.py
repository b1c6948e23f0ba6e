"""Ways of drafting on prompt sets: they and plain decoding take turns, so that all see the same machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from slipstream.bench.in_process import BenchRequest
from slipstream.bench.model_systems import ModelFactory
from slipstream.config import Settings, SpeculativeSettings
from slipstream.request import SamplingParams
from slipstream.training.measured_decoding import Decoding, slices
from slipstream.training.reliability import Reliability, reliability

COLUMNS = (
    "prompts",
    "T",
    "at once",
    "drafts by",
    "texts",
    "length",
    "tok/s",
    "plain",
    "speed-up",
    "ECE",
    "AUROC",
    "Brier",
    "loops",
    "repeated",
)
WARM_UP_TOKENS = 8
_UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts under a name."""

    name: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which a set is decoded.

    Attributes:
        concurrency: requests at a time. max_tokens: of an answer; EOS ends it before. seed: of sampled answers.
    """

    temperature: float
    concurrency: int
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one way of drafting on one set.

    Attributes:
        method: the way's name.
        acceptance_length: mean tokens per decode step, steps without drafts included. conditional, cumulative: by
            position.
        tokens_per_s, plain_tokens_per_s: output tokens per second of both ways; the same texts, but for what
            `same_texts` says.
        same_texts: share of answers that are token by token those of plain decoding; below 1 where rounding depends on
            the batch, and under the textbook rejection rule, where texts are equal in law alone.
        calibration: of the confidences; None where the drafter gives none.
        num_loops: answers that hold a loop. repeated: mean share of repeated 4-grams. Acceptance on loops proves
            nothing.
        failures: requests that ended with an error, plain ones included. draft_failures: the drafter's faults, by
            reason; its figures then are those of what it had left.
    """

    name: str
    temperature: float
    concurrency: int
    method: str
    num_prompts: int
    num_tokens: int
    acceptance_length: float | None
    conditional: list[float | None]
    cumulative: list[float | None]
    tokens_per_s: float | None
    plain_tokens_per_s: float | None
    same_texts: float | None
    calibration: Reliability | None
    num_loops: int
    repeated: float
    failures: int
    draft_failures: Mapping[str, int]

    @property
    def speed_up(self) -> float | None:
        """Drafted over plain."""
        if self.tokens_per_s is None or self.plain_tokens_per_s is None:
            return None
        return self.tokens_per_s / self.plain_tokens_per_s

    def row(self) -> tuple[str, ...]:
        """Cells under COLUMNS."""
        calibration = self.calibration
        return (
            self.name,
            f"{self.temperature:g}",
            str(self.concurrency),
            self.method,
            str(self.num_prompts),
            _text(self.acceptance_length, 3),
            _text(self.tokens_per_s, 1),
            _text(self.plain_tokens_per_s, 1),
            _text(self.speed_up, 2),
            _text(None if calibration is None else calibration.mean_error, 4),
            _text(None if calibration is None else calibration.mean_area, 3),
            _text(None if calibration is None else calibration.mean_brier, 3),
            str(self.num_loops),
            f"{self.repeated:.2f}",
        )

    def position_row(self, depth: int) -> tuple[str, ...]:
        """Name, temperature, concurrency, way, and "conditional / cumulative" of `depth` positions."""
        cells = [
            f"{_text(given, 3)} / {_text(whole, 3)}"
            for given, whole in zip(self.conditional, self.cumulative, strict=True)
        ]
        head = (self.name, f"{self.temperature:g}", str(self.concurrency), self.method)
        return (*head, *cells, *[""] * (depth - len(cells)))

    def faults_line(self) -> str | None:
        """The drafter's faults in words; None without any."""
        if not self.draft_failures:
            return None
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.draft_failures.items())
        where = f"{self.name}, T = {self.temperature:g}, {self.concurrency} at once, {self.method}"
        return f"The drafter failed on {where}: {reasons}. Its figures are without the drafts that this cost."

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        calibration = self.calibration
        values = asdict(self) | {"speed_up": self.speed_up}
        if calibration is not None:
            values["calibration"] |= {
                "mean_error": calibration.mean_error,
                "mean_area": calibration.mean_area,
                "mean_brier": calibration.mean_brier,
            }
        return values


@dataclass(frozen=True, slots=True)
class SetMean:
    """Unweighted means over sets of one way under the same conditions; None where no set has the figure."""

    temperature: float
    concurrency: int
    method: str
    num_sets: int
    acceptance_length: float | None
    speed_up: float | None

    def row(self) -> tuple[str, ...]:
        """Cells under COLUMNS."""
        head = ("mean of sets", f"{self.temperature:g}", str(self.concurrency), self.method, "")
        figures = (_text(self.acceptance_length, 3), "", "", _text(self.speed_up, 2))
        return (*head, *figures, *[""] * (len(COLUMNS) - len(head) - len(figures)))


def evaluate(
    factory: ModelFactory,
    settings: Settings,
    ways: Mapping[str, SpeculativeSettings],
    prompts: PromptSet,
    conditions: Conditions,
    *,
    with_plain: bool,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Evaluation]:
    """Decode a set in each way. All take turns at a few prompts each, and in who begins.

    Args:
        settings: of every engine, but for what drafts.
        ways: by name.
    """
    sampling = SamplingParams(max_tokens=conditions.max_tokens, temperature=conditions.temperature)
    requests = [
        BenchRequest(tuple(factory.encode_chat(text)), sampling, conditions.seed + i)
        for i, text in enumerate(prompts.texts)
    ]
    with ExitStack() as opened:

        def open_decoding(way: SpeculativeSettings | None) -> Decoding:
            return opened.enter_context(closing(Decoding(factory, replace(settings, speculative=way))))

        decodings = {name: open_decoding(way) for name, way in ways.items()}
        plain = open_decoding(None) if with_plain else None
        everyone = [*decodings.values(), *([] if plain is None else [plain])]
        for decoding in everyone:
            decoding.warm_up(replace(requests[0], sampling=replace(sampling, max_tokens=WARM_UP_TOKENS)))
        done = 0
        same = dict.fromkeys(decodings, 0)
        for turn, part in enumerate(slices(requests, 2 * conditions.concurrency)):
            first = turn % len(everyone)
            texts = {
                id(decoding): [record.token_ids for record in decoding.run(part, conditions.concurrency).requests]
                for decoding in (*everyone[first:], *everyone[:first])
            }
            for name, decoding in decodings.items():
                other = texts[id(decoding if plain is None else plain)]
                same[name] += sum(a == b for a, b in zip(texts[id(decoding)], other, strict=True))
            done += len(part)
            on_progress(done)
        return [
            _evaluation(name, decoding, plain, prompts, conditions, same[name] / len(requests))
            for name, decoding in decodings.items()
        ]


def _evaluation(
    method: str, drafted: Decoding, plain: Decoding | None, prompts: PromptSet, conditions: Conditions, same: float
) -> Evaluation:
    tally, outcomes, acceptance = drafted.tally, drafted.outcomes(), drafted.acceptance()
    return Evaluation(
        name=prompts.name,
        temperature=conditions.temperature,
        concurrency=conditions.concurrency,
        method=method,
        num_prompts=len(prompts.texts),
        num_tokens=tally.num_tokens,
        acceptance_length=None if acceptance is None else acceptance.tokens_per_decode_step,
        conditional=[] if acceptance is None else list(acceptance.rate_by_position_reached or ()),
        cumulative=[] if acceptance is None else list(acceptance.rate_by_position_verified or ()),
        tokens_per_s=tally.tokens_per_s,
        plain_tokens_per_s=None if plain is None else plain.tally.tokens_per_s,
        same_texts=None if plain is None else same,
        calibration=reliability(outcomes) if len(outcomes) else None,
        num_loops=tally.num_loops,
        repeated=tally.repetition / tally.num_texts,
        failures=tally.failures + (0 if plain is None else plain.tally.failures),
        draft_failures=drafted.draft_failures(),
    )


def means(found: Sequence[Evaluation]) -> list[SetMean]:
    """One per way and conditions, in the order in which they were measured."""
    groups: dict[tuple[float, int, str], list[Evaluation]] = {}
    for evaluation in found:
        groups.setdefault((evaluation.temperature, evaluation.concurrency, evaluation.method), []).append(evaluation)
    return [
        SetMean(*key, len(group), _mean([e.acceptance_length for e in group]), _mean([e.speed_up for e in group]))
        for key, group in groups.items()
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _text(value: float | None, digits: int) -> str:
    return _UNKNOWN if value is None else f"{value:.{digits}f}"
