"""Target states in one memory-mapped file, so that epochs after the first cost no pass of the target."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipstream.config import SettingError
from slipstream.training.corpus import Dialogue
from slipstream.training.run_state import first_difference
from slipstream.training.target_states import TargetReader, TokenStates, join_states

PROGRESS_FILE = "progress.json"


def state_bytes(num_tokens: int, num_layers: int, hidden_size: int, dtype: torch.dtype) -> int:
    """Bytes of the states of so many tokens: tapped layers, final state, log normaliser, likeliest token."""
    return num_tokens * ((num_layers + 1) * hidden_size * dtype.itemsize + 8)


def check_states(folder: Path, identity: dict[str, Any], num_dialogues: int) -> None:
    """Refuse a folder that does not hold all states of `identity` (see StateCache). Raises SettingError."""
    path = folder / PROGRESS_FILE
    if not path.is_file():
        raise SettingError(f"--states {folder}: no target states are here; name the folder `states` of a training run")
    try:
        progress = json.loads(path.read_text(encoding="utf-8"))
        found, num_done = progress["identity"], progress["num_done"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"--states {folder}: {PROGRESS_FILE} cannot be read ({error})") from None
    if found != identity:
        raise SettingError(
            f"--states {folder}: these are other states ({first_difference(found, identity)}); share those of a run "
            "with the same target, tapped layers and dialogues, or leave --states out"
        )
    if num_done < num_dialogues:
        raise SettingError(
            f"--states {folder}: only {num_done} of {num_dialogues} dialogues are done; let that run go on first"
        )


class StateCache:
    """States of a fixed list of dialogues, filled once and in order.

    Args:
        folder: of the files; what an earlier run left there is gone on with if `identity` is the same.
        identity: JSON of everything that the states depend on: target, layers, dialogues.
    """

    def __init__(
        self, folder: Path, dialogues: Sequence[Dialogue], reader: TargetReader, identity: dict[str, Any]
    ) -> None:
        self._dialogues = dialogues
        self._reader = reader
        self._folder = folder
        self._identity = identity
        width = reader.decoder.config.hidden_size
        self._tapped_width = len(reader.layers) * width
        self._starts = np.cumsum([0, *(len(dialogue) for dialogue in dialogues)])
        self.num_tokens = int(self._starts[-1])
        self.num_bytes = state_bytes(self.num_tokens, len(reader.layers), width, reader.decoder.dtype)
        folder.mkdir(parents=True, exist_ok=True)
        self.num_done = self._read_progress()
        self._check_space()
        self._states = self._map("states.bin", self._tapped_width + width, reader.decoder.dtype)
        self._normalisers = self._map("log_normalisers.bin", 1, torch.float32)[:, 0]
        self._choices = self._map("choices.bin", 1, torch.int32)[:, 0]

    def fill(self, on_progress: Callable[[int], None] = lambda done: None) -> None:
        """Make what is missing. `on_progress` hears how many dialogues are done."""
        left = self._dialogues[self.num_done :]
        first = self.num_done
        for group in self._reader.groups(left):
            part = self._reader.read([left[i] for i in group])
            rows = slice(self._starts[first + group[0]], self._starts[first + group[-1] + 1])
            self._states[rows, : self._tapped_width] = part.tapped
            self._states[rows, self._tapped_width :] = part.final
            self._normalisers[rows] = part.log_normalisers
            self._choices[rows] = part.choices.int()
            self.num_done = first + group[-1] + 1
            self._write_progress()
            on_progress(self.num_done)

    def states(self, numbers: Sequence[int]) -> TokenStates:
        """See StateSource. A number that is not filled yet raises IndexError."""
        if max(numbers) >= self.num_done:
            raise IndexError(f"dialogue {max(numbers)} is not in the cache yet")
        device = self._reader.decoder.device
        parts = []
        for number in numbers:
            rows = slice(self._starts[number], self._starts[number + 1])
            states = self._states[rows].to(device)
            tapped, final = states[:, : self._tapped_width], states[:, self._tapped_width :]
            normalisers, choices = self._normalisers[rows].to(device), self._choices[rows].to(device).long()
            parts.append(TokenStates(tapped, final, normalisers, choices))
        return join_states(parts)

    def _map(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        path = self._folder / name
        mapped = torch.from_file(str(path), shared=True, size=self.num_tokens * width, dtype=dtype)
        return mapped.view(self.num_tokens, width)

    def _check_space(self) -> None:
        held = sum(path.stat().st_blocks * 512 for path in self._folder.glob("*.bin"))
        place = os.statvfs(self._folder)
        free = place.f_bavail * place.f_frsize
        if self.num_bytes - held > free:
            raise SettingError(
                f"target states of {self.num_tokens} tokens take {self.num_bytes / 1e9:.1f} GB in {self._folder}, "
                f"where {(free + held) / 1e9:.1f} GB are free; use fewer dialogues or state_cache = false"
            )

    def _read_progress(self) -> int:
        path = self._folder / PROGRESS_FILE
        if not path.is_file():
            return 0
        progress = json.loads(path.read_text(encoding="utf-8"))
        if progress["identity"] == self._identity:
            return int(progress["num_done"])
        for stale in self._folder.glob("*.bin"):
            stale.unlink()
        return 0

    def _write_progress(self) -> None:
        path = self._folder / PROGRESS_FILE
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"identity": self._identity, "num_done": self.num_done}), encoding="utf-8")
        part.replace(path)
