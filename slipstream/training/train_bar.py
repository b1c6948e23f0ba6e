"""Bars of a training run's stages, one below the other, with the time that is left."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_EVERY_S = 60.0


class StageBar:
    """Shows stages. Where nobody looks at a terminal, a line now and then goes to a log instead."""

    def __init__(self, *, is_shown: bool = True) -> None:
        self._console = Console(stderr=True)
        self._is_shown = is_shown
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
        )
        live = is_shown and self._console.is_terminal
        self._bars = Progress(*columns, console=self._console, disable=not live, speed_estimate_period=120.0)
        self._is_live = live
        self._tasks: dict[str, TaskID] = {}
        self._last_line = 0.0
        self._begun: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> StageBar:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def report(self, stage: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` of a stage are done."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, note=note)
            self._begun[stage] = (time.monotonic(), done)
        self._bars.update(self._tasks[stage], completed=done, note=note)
        now = time.monotonic()
        if self._is_shown and not self._is_live and (now - self._last_line >= LINE_EVERY_S or done == total):
            self._last_line = now
            self.say(f"{stage}: {done} of {total}{self._left(stage, done, total, now)}{f', {note}' if note else ''}")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._is_shown:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _left(self, stage: str, done: int, total: int, now: float) -> str:
        begun, first = self._begun[stage]
        if done <= first or done >= total:
            return ""
        minutes = (now - begun) / (done - first) * (total - done) / 60
        return f", {minutes:.0f} min left"
