"""Dialogues as token ids, kept in small files that a run which was cut off can go on from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

TokenIds = NDArray[np.int32]
Mask = NDArray[np.bool_]


class CorpusError(ValueError):
    """Training data that cannot be used; names the file."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation as the target reads it.

    Attributes:
        token_ids: [S]. is_answer: which tokens the target itself wrote, those that end its turns included, [S].
        kind: where the prompt came from. temperature: of the answers.
    """

    token_ids: TokenIds
    is_answer: Mask
    kind: str = ""
    temperature: float = 0.0

    def __len__(self) -> int:
        return len(self.token_ids)


class CorpusFolder:
    """Dialogues in numbered files of a folder. A file is complete or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, number: int) -> Path:
        """Where file `number` lies."""
        return self.folder / f"dialogues-{number:05d}.safetensors"

    def has(self, number: int) -> bool:
        """Whether file `number` was written."""
        return self.path_of(number).is_file()

    def write(self, number: int, dialogues: Sequence[Dialogue]) -> None:
        """Write file `number`; an empty one too, so that it is not made again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        empty = np.zeros(0, np.int32)
        tensors: dict[str, NDArray[Any]] = {
            "token_ids": np.concatenate([empty, *(d.token_ids for d in dialogues)]).astype(np.int32),
            "is_answer": np.concatenate([empty, *(d.is_answer for d in dialogues)]).astype(np.uint8),
            "lengths": np.array([len(d) for d in dialogues], np.int32),
            "temperatures": np.array([d.temperature for d in dialogues], np.float32),
        }
        part = self.path_of(number).with_suffix(".part")
        save_file(tensors, part, metadata={"kinds": json.dumps([d.kind for d in dialogues])})
        part.replace(self.path_of(number))

    def read(self) -> list[Dialogue]:
        """All dialogues, in the order of the files. Raises CorpusError."""
        paths = sorted(self.folder.glob("dialogues-*.safetensors"))
        if not paths:
            raise CorpusError(f"{self.folder} holds no dialogues")
        return [dialogue for path in paths for dialogue in _read_file(path)]


def _read_file(path: Path) -> Iterator[Dialogue]:
    try:
        with safe_open(path, framework="np") as file:
            values = {name: file.get_tensor(name) for name in ("token_ids", "is_answer", "lengths", "temperatures")}
            kinds = json.loads((file.metadata() or {})["kinds"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise CorpusError(f"{path}: cannot be read as dialogues ({error}); remove it to have it made again") from None
    ends = np.cumsum(values["lengths"])
    for i, (end, length) in enumerate(zip(ends.tolist(), values["lengths"].tolist(), strict=True)):
        span = slice(end - length, end)
        yield Dialogue(
            values["token_ids"][span], values["is_answer"][span] != 0, kinds[i], float(values["temperatures"][i])
        )


def split_held_out(dialogues: Sequence[Dialogue], every: int) -> tuple[list[Dialogue], list[Dialogue]]:
    """To train on, and held out: every `every`-th."""
    held_out = list(dialogues[::every])
    return [d for i, d in enumerate(dialogues) if i % every], held_out
