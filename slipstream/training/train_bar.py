"""Bars of a training run's stages, one below the other, with the time that is left."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
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
    """Shows stages. Where nobody looks at a terminal, it prints a line now and then instead.

    Args:
        log: lines go there too, with the time, whether they are shown or not.
    """

    def __init__(self, *, is_shown: bool = True, log: Path | None = None) -> None:
        self._log = log
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
        if now - self._last_line >= LINE_EVERY_S or done == total:
            self._last_line = now
            line = f"{stage}: {done} of {total}{self._left(stage, done, total, now)}{f', {note}' if note else ''}"
            self._keep(line)
            if self._is_shown and not self._is_live:
                self._print(line)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._keep(line)
        if self._is_shown:
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _keep(self, line: str) -> None:
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")

    def _left(self, stage: str, done: int, total: int, now: float) -> str:
        begun, first = self._begun[stage]
        if done <= first or done >= total:
            return ""
        minutes = (now - begun) / (done - first) * (total - done) / 60
        return f", {minutes:.0f} min left"
