"""A drafter on a prompt set: drafted and plain decoding take turns, so that both see the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slipstream.bench.in_process import BenchRequest
from slipstream.bench.model_systems import ModelFactory
from slipstream.config import ModelSettings, SpeculativeSettings
from slipstream.request import SamplingParams
from slipstream.training.measured_decoding import Decoding, measuring_settings, slices
from slipstream.training.reliability import Reliability, reliability

COLUMNS = (
    "prompts",
    "T",
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
_UNKNOWN = "–"


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts under a name."""

    name: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one set.

    Attributes:
        acceptance_length: mean tokens per decode step, steps without drafts included. conditional, cumulative: by
            position.
        tokens_per_s, plain_tokens_per_s: output tokens per second of both ways; the same texts.
        same_texts: share of answers that are token by token those of plain decoding; below 1 only where rounding
            depends on the batch.
        calibration: of the confidences; None where the drafter gives none.
        num_loops: answers that hold a loop. repeated: mean share of repeated 4-grams. Acceptance on loops proves
            nothing.
    """

    name: str
    temperature: float
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
        """Name, temperature, and "conditional / cumulative" of `depth` positions."""
        cells = [
            f"{_text(given, 3)} / {_text(whole, 3)}"
            for given, whole in zip(self.conditional, self.cumulative, strict=True)
        ]
        return (self.name, f"{self.temperature:g}", *cells, *[""] * (depth - len(cells)))

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


def evaluate(
    factory: ModelFactory,
    model: ModelSettings,
    speculative: SpeculativeSettings,
    prompts: PromptSet,
    *,
    temperature: float,
    max_tokens: int,
    concurrency: int,
    seed: int,
    with_plain: bool,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Decode a set. EOS ends an answer. The two ways take turns at a few prompts each, and in who begins."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    requests = [
        BenchRequest(tuple(factory.encode_chat(text)), sampling, seed + i) for i, text in enumerate(prompts.texts)
    ]
    drafted = Decoding(factory, measuring_settings(model, speculative, concurrency, verify_all=True))
    plain = Decoding(factory, measuring_settings(model, None, concurrency, verify_all=True)) if with_plain else None
    done = same = 0
    for turn, part in enumerate(slices(requests, 2 * concurrency)):
        ways = [drafted] if plain is None else [drafted, plain] if turn % 2 else [plain, drafted]
        texts = [[record.token_ids for record in way.run(part, concurrency).requests] for way in ways]
        same += sum(a == b for a, b in zip(texts[0], texts[-1], strict=True))
        done += len(part)
        on_progress(done)
    tally = drafted.tally
    outcomes = drafted.outcomes()
    return Evaluation(
        name=prompts.name,
        temperature=temperature,
        num_prompts=len(requests),
        num_tokens=tally.num_tokens,
        acceptance_length=tally.acceptance_length,
        conditional=tally.conditional_acceptance(),
        cumulative=tally.cumulative_acceptance(),
        tokens_per_s=tally.tokens_per_s,
        plain_tokens_per_s=None if plain is None else plain.tally.tokens_per_s,
        same_texts=None if plain is None else same / len(requests),
        calibration=reliability(outcomes) if len(outcomes) else None,
        num_loops=tally.num_loops,
        repeated=tally.repetition / tally.num_texts,
        failures=tally.failures + (0 if plain is None else plain.tally.failures),
    )


def means(found: Sequence[Evaluation]) -> list[tuple[str, ...]]:
    """One row per temperature with several sets: unweighted means over sets."""
    rows = []
    for temperature in sorted({evaluation.temperature for evaluation in found}):
        mine = [evaluation for evaluation in found if evaluation.temperature == temperature]
        if len(mine) > 1:
            lengths = [e.acceptance_length for e in mine if e.acceptance_length is not None]
            ratios = [e.speed_up for e in mine if e.speed_up is not None]
            length = _text(sum(lengths) / len(lengths) if lengths else None, 3)
            ratio = _text(sum(ratios) / len(ratios) if ratios else None, 2)
            rows.append(("mean of sets", f"{temperature:g}", "", length, "", "", ratio, *[""] * (len(COLUMNS) - 7)))
    return rows


def _text(value: float | None, digits: int) -> str:
    return _UNKNOWN if value is None else f"{value:.{digits}f}"
