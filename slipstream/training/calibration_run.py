"""Outcomes on prompts that no drafter was trained on, a fit on half of them, and figures on the other half."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from slipstream.bench.in_process import BenchRequest, choice_id_of
from slipstream.bench.model_systems import ModelFactory
from slipstream.config import ModelSettings, SettingError, SpeculativeSettings
from slipstream.request import SamplingParams
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.training.measured_decoding import Decoding, measuring_settings
from slipstream.training.outcomes import Outcomes, joined
from slipstream.training.reliability import Reliability, reliability
from slipstream.training.temperature_fit import Scaling, fit_scaling, scaled, unscaled

MAX_PROMPTS = 100_000


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """Of one temperature. Figures are of blocks of prompts that were not fitted on.

    Attributes:
        scaling: fitted. num_fitted: blocks fitted on. before, after: without and with it.
    """

    temperature: float
    scaling: Scaling
    num_fitted: int
    before: Reliability
    after: Reliability

    def rows(self) -> list[tuple[str, ...]]:
        """Cells of a table, one row per position and one for all."""
        found = []
        pairs = (("error", 4), ("area", 3), ("brier", 4))
        for k in range(len(self.after.error)):
            cells = [str(k + 1), str(self.after.num_events[k])]
            cells += [f"{self.scaling.divisors[k]:.3f}", f"{self.scaling.shifts[k]:.3f}"]
            for name, digits in pairs:
                cells += [_number(getattr(part, name)[k], digits) for part in (self.before, self.after)]
            found.append(tuple(cells))
        cells = ["all", str(sum(self.after.num_events)), "", ""]
        for name, digits in pairs:
            cells += [_number(getattr(part, f"mean_{name}"), digits) for part in (self.before, self.after)]
        return [*found, tuple(cells)]

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "temperature": self.temperature,
            "divisors": list(self.scaling.divisors),
            "shifts": list(self.scaling.shifts),
            "num_fitted": self.num_fitted,
            **{
                name: asdict(part)
                | {"mean_error": part.mean_error, "mean_area": part.mean_area, "mean_brier": part.mean_brier}
                for name, part in (("before", self.before), ("after", self.after))
            },
        }


def calibrate(
    factory: ModelFactory,
    model: ModelSettings,
    speculative: SpeculativeSettings,
    config: DrafterConfig,
    prompts: Iterator[str],
    *,
    temperature: float,
    num_events: int,
    max_tokens: int,
    concurrency: int,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> CalibrationResult:
    """Decode prompts until both halves have `num_events` blocks. Prompts are dealt out to the halves in turn, so no
    text is in both.

    Raises:
        SettingError: there are too few prompts.
    """
    settings = measuring_settings(model, speculative, concurrency, verify_all=True)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    halves: tuple[list[Outcomes], list[Outcomes]] = ([], [])
    counts = [0, 0]
    number = 0
    with closing(Decoding(factory, settings)) as decoding:
        while min(counts) < num_events:
            texts = list(islice(prompts, 2 * concurrency))
            if not texts or number > MAX_PROMPTS:
                raise SettingError(
                    f"{number} prompts gave {min(counts)} blocks for each half at temperature {temperature:g}, "
                    f"--events asks for {num_events}; give more prompts, or --events {max(min(counts), 1)}"
                )
            requests = [
                BenchRequest(tuple(factory.encode_chat(text)), sampling, seed + number + i)
                for i, text in enumerate(texts)
            ]
            first = len(decoding.collector)
            decoding.run(requests, concurrency)
            found = decoding.outcomes()
            owners = decoding.collector.request_ids
            for half in (0, 1):
                members = {choice_id_of(i) for i in range(half, len(requests), 2)}
                mine = np.array([i >= first and owner in members for i, owner in enumerate(owners)], bool)
                halves[half].append(found.part(mine))
                counts[half] += int(mine.sum())
            number += len(texts)
            on_progress(min(min(counts), num_events), num_events)
    fitting, judging = (_raw(joined(half), config, temperature) for half in halves)
    scaling = fit_scaling(fitting)
    return CalibrationResult(
        temperature, scaling, len(fitting), reliability(judging), reliability(scaled(judging, scaling))
    )


def _raw(outcomes: Outcomes, config: DrafterConfig, temperature: float) -> Outcomes:
    """The confidences as they were before the calibration that the drafter has already."""
    old = config.calibration_for(temperature)
    if old is None:
        return outcomes
    return unscaled(outcomes, Scaling(old.divisors[: outcomes.depth], old.shifts[: outcomes.depth]))


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
