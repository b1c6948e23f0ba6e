"""The state of a training run on disk: whatever moment a run is ended at, it goes on with the same weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.config import SettingError


@dataclass(slots=True)
class History:
    """What is drawn in the report: entries are plain JSON objects with a `step`.

    Attributes:
        training: mean loss parts, gradient norm and learning rate of the steps since the entry before.
        held_out: HeldOutFigures as objects.
    """

    training: list[dict[str, Any]] = field(default_factory=list)
    held_out: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunState:
    """After `step` steps. Batches follow from seed and step, so no generator or data position is part of it."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    history: History
    pending: list[dict[str, float]]


class RunFile:
    """Writes and reads a RunState.

    Args:
        identity: JSON of everything that the weights depend on; a state of another identity is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self._identity = json.loads(json.dumps(identity))  # as it will be read

    def write(self, state: RunState) -> None:
        """Replace the state on disk; one that is cut off leaves the old one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        torch.save(
            {
                "identity": json.dumps(self._identity),
                "step": state.step,
                "model": dict(state.model),
                "optimizer": dict(state.optimizer),
                "training": state.history.training,
                "held_out": state.history.held_out,
                "pending": state.pending,
            },
            part,
        )
        part.replace(self.path)

    def read(self, device: torch.device) -> RunState | None:
        """The state to go on from; None at the beginning. Raises SettingError when it is another run's."""
        if not self.path.is_file():
            return None
        try:
            values = torch.load(self.path, map_location=device, weights_only=True)
            found = json.loads(values["identity"])
        except Exception as error:  # torch raises many kinds
            raise SettingError(
                f"{self.path} cannot be read ({str(error).splitlines()[0]}); remove it to begin anew"
            ) from None
        if found != self._identity:
            raise SettingError(
                f"{self.path} is of a run with other settings ({first_difference(found, self._identity)}); "
                "give another --output, or remove it to begin anew"
            )
        history = History(values["training"], values["held_out"])
        return RunState(values["step"], values["model"], values["optimizer"], history, values["pending"])


def first_difference(old: object, new: object, name: str = "") -> str:
    """The first difference between two JSON values, in words."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}, key=str):
            place = f"{name}.{key}" if name else str(key)
            if key not in old or key not in new:
                return f"{place} was {'not ' * (key not in old)}given, is {'not ' * (key not in new)}given"
            if old[key] != new[key]:
                return first_difference(old[key], new[key], place)
    return f"{name} was {old!r:.80}, is {new!r:.80}"
