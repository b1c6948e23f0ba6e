"""A training run as one HTML page: loss, held-out acceptance, and the recipe."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from slipstream.training.train_run import TrainRun

_COLOURS = ("#2f6fde", "#d9822b", "#2a9d5c", "#b04ad1", "#c0392b", "#5a6675")
_NUM_TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: values over steps."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves that share axes, laid out in pixels."""

    title: str
    curves: Sequence[Line]
    width: int = 900
    height: int = 260
    left: int = 56

    @property
    def lines(self) -> list[dict[str, str]]:
        """Name, colour and points of each curve."""
        return [
            {
                "name": line.name,
                "colour": _COLOURS[i % len(_COLOURS)],
                "points": " ".join(
                    f"{self._x(step):.1f},{self._y(value):.1f}"
                    for step, value in zip(line.steps, line.values, strict=True)
                ),
            }
            for i, line in enumerate(self.curves)
        ]

    @property
    def y_ticks(self) -> list[dict[str, object]]:
        """Places and labels of values."""
        low, high = self._range()
        values = [low + (high - low) * i / (_NUM_TICKS - 1) for i in range(_NUM_TICKS)]
        return [{"place": round(self._y(value), 1), "label": f"{value:.3g}"} for value in values]

    @property
    def x_ticks(self) -> list[dict[str, object]]:
        """Places and labels of steps."""
        last = self._last_step()
        steps = sorted({round(last * i / _NUM_TICKS) for i in range(1, _NUM_TICKS)})
        return [{"place": round(self._x(step), 1), "label": str(step)} for step in steps]

    def _last_step(self) -> int:
        return max((step for line in self.curves for step in line.steps), default=1)

    def _range(self) -> tuple[float, float]:
        values = [value for line in self.curves for value in line.values if math.isfinite(value)]
        low, high = min(values, default=0.0), max(values, default=1.0)
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def _x(self, step: int) -> float:
        return self.left + (self.width - self.left - 8) * step / self._last_step()

    def _y(self, value: float) -> float:
        low, high = self._range()
        return 8 + (self.height - 36) * (high - value) / (high - low)


def html_of(run: TrainRun) -> str:
    """The page of a run as it is now."""
    history, config = run.trainer.history, run.config
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = (files("slipstream.training") / "page" / "train.html").read_text(encoding="utf-8")
    charts = [
        _chart("Loss", history.training, {"loss": "training"}, history.held_out),
        _chart("Parts of the training loss", history.training, _present(history.training)),
        _chart(
            "Held-out acceptance length, tokens per step",
            history.held_out,
            {"greedy_length": "temperature 0", "sampled_length": "temperature 1"},
        ),
    ]
    return environment.from_string(page).render(
        target=config.target.name,
        algorithm={"dspark": "DSpark", "dflash": "DFlash"}[config.algorithm.value],
        words=run.in_words(),
        charts=[chart for chart in charts if chart.curves],
        held_out=history.held_out[-1] if history.held_out else None,
        recipe=json.dumps(config.training["recipe"], indent=2),
    )


def _chart(
    title: str, entries: Sequence[dict[str, Any]], names: dict[str, str], held_out: Sequence[dict[str, Any]] = ()
) -> Chart:
    lines = [
        Line(label, [entry["step"] for entry in entries], [entry[name] for entry in entries])
        for name, label in names.items()
        if entries
    ]
    if held_out:
        lines.append(Line("held out", [entry["step"] for entry in held_out], [entry["loss"] for entry in held_out]))
    return Chart(title, lines)


def _present(entries: Sequence[dict[str, Any]]) -> dict[str, str]:
    words = {"cross_entropy": "cross-entropy", "l1": "L1", "kl": "KL", "confidence": "confidence"}
    return {name: label for name, label in words.items() if entries and entries[-1].get(name)}
