"""What the folder of a training run tells of its data and its time, beside what the drafter itself keeps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from slipstream.training.corpus import CorpusFolder, Dialogue

_TIME = "%Y-%m-%d %H:%M:%S"
_TIME_LENGTH = 19
_TRAINING = ("Training: ", "step ")
_TO_GO_ON = 600.0
"""Seconds between two lines of one stage at most: lines come every minute, so a longer gap is no training."""


@dataclass(frozen=True, slots=True)
class DialogueCount:
    """Of dialogues that have something in common."""

    name: str
    num_dialogues: int
    num_tokens: int
    num_answer_tokens: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Of one run.

    Attributes:
        kinds, temperatures: counts of the dialogues that were kept, by name.
        num_begun: dialogues that were begun, dropped ones included; None where it is not known.
        dropped: why something was left out -> how often (dialogue_writer.DropCounts).
        training: time that was spent in steps and held-out measuring; None without a log of it.
    """

    kinds: Sequence[DialogueCount]
    temperatures: Sequence[DialogueCount]
    num_begun: int | None
    dropped: Mapping[str, int]
    training: timedelta | None


def read_run(run: Path | None, data: Sequence[Path]) -> RunRecord:
    """What is known of a run.

    Args:
        run: its folder; None leaves out what only it tells. data: folders of the dialogues.

    Raises:
        CorpusError: there are no dialogues, or they cannot be read.
    """
    dialogues = [dialogue for folder in data for dialogue in CorpusFolder(folder).read()]
    begun = [_num_begun(folder) for folder in data]
    dropped: Counter[str] = Counter()
    for folder in data:
        dropped.update(dropped_in(_lines(folder / "log.jsonl")))
    return RunRecord(
        kinds=count_by(dialogues, lambda dialogue: dialogue.kind),
        temperatures=count_by(dialogues, lambda dialogue: f"{dialogue.temperature:.3g}"),
        num_begun=None if None in begun else sum(count for count in begun if count is not None),
        dropped=dropped,
        training=None if run is None else training_time(_lines(run / "train.log")),
    )


def count_by(dialogues: Iterable[Dialogue], name_of: Callable[[Dialogue], str]) -> list[DialogueCount]:
    """One count per name, in the order of the names."""
    groups: dict[str, list[Dialogue]] = {}
    for dialogue in dialogues:
        groups.setdefault(name_of(dialogue), []).append(dialogue)
    return [
        DialogueCount(name, len(group), sum(map(len, group)), int(sum(d.is_answer.sum() for d in group)))
        for name, group in sorted(groups.items())
    ]


def dropped_in(lines: Iterable[str]) -> dict[str, int]:
    """Sums of a corpus log. Its counts rise from line to line within a process and begin anew with the next one, which
    is told by a count that falls."""
    total: dict[str, int] = {}
    before: dict[str, int] = {}
    for line in lines:
        entry: Any = json.loads(line)
        counts = {str(name): int(count) for name, count in entry.get("dropped_so_far", {}).items()}
        if any(counts.get(name, 0) < count for name, count in before.items()):
            before = {}
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count - before.get(name, 0)
        before = counts
    return total


def training_time(lines: Iterable[str]) -> timedelta | None:
    """Time between the lines of training steps in a `train.log`; stops between two calls of the command are no part."""
    total, before = timedelta(), None
    found = False
    for line in lines:
        try:
            now = datetime.strptime(line[:_TIME_LENGTH], _TIME)
        except ValueError:
            continue
        if line[_TIME_LENGTH + 1 :].startswith(_TRAINING):
            found = True
            if before is not None and (now - before).total_seconds() <= _TO_GO_ON:
                total += now - before
        before = now
    return total if found else None


def _num_begun(data: Path) -> int | None:
    settings = data / "settings.json"
    if not settings.is_file():
        return None
    size = json.loads(settings.read_text(encoding="utf-8")).get("num_per_file")
    return None if size is None else int(size) * len(list(data.glob("dialogues-*.safetensors")))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
