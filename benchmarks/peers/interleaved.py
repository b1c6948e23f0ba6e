"""Systems measured in turn on the same jobs, again and again, so that a slow minute of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from peers.environment import PeerError
from peers.jobs import Job, Loaded, Result, Setup
from peers.process import SystemProcess

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class System:
    """What is measured.

    Attributes:
        command: makes ready whatever its process needs, and says how it is started; raises PeerError.
        python_path: further folders that it imports from.
    """

    name: str
    command: Callable[[], Sequence[str]]
    is_peer: bool
    python_path: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. start_s: until a system is ready. job_s: of one job on one system. total_s: of everything measured."""

    start_s: float = 600.0
    job_s: float = 600.0
    total_s: float = 9000.0


@dataclass(slots=True)
class Measured:
    """What came out.

    Attributes:
        results: [job][system name], one Result for each repeat that was made.
        loaded: system name -> what it said of itself, and the seconds until it was ready.
        errors: system name -> why it did not load. failures: (job, system name) -> why that job failed.
        is_complete: False where the time ended before the last repeat.
    """

    results: list[dict[str, list[Result]]]
    loaded: dict[str, tuple[Loaded, float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    failures: dict[tuple[int, str], str] = field(default_factory=dict)
    is_complete: bool = True


class Progress(Protocol):
    """Hears what happens."""

    def __call__(self, text: str) -> None: ...


class Contestant:
    """A system with its process, which is started again after a job that failed."""

    def __init__(self, system: System, setup: Setup, warm_up: Sequence[Job], log: Path, limits: Limits) -> None:
        self.system = system
        self._setup, self._warm_up, self._log, self._limits = setup, warm_up, log, limits
        self._process: SystemProcess | None = None

    def start(self) -> tuple[Loaded, float]:
        """What it said of itself, and the seconds until it was ready. Raises PeerError."""
        system = self.system
        self._process = SystemProcess(
            system.command(), self._setup, self._log, self._limits.start_s, python_path=system.python_path
        )
        for job in self._warm_up:
            self.run(job, self._limits.job_s)
        return self._process.loaded, self._process.ready_s

    def run(self, job: Job, limit_s: float) -> Result:
        """Raises PeerError."""
        if self._process is None:
            self.start()
        assert self._process is not None
        try:
            return self._process.run(job, limit_s)
        except PeerError:
            self.close()
            raise

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.close()
        self._process = None


def measure_interleaved(
    systems: Sequence[System],
    setup: Setup,
    jobs: Sequence[Job],
    *,
    repeats: int,
    limits: Limits,
    logs: Path,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> Measured:
    """Every job on every system in each repeat, and who begins changes. Systems that fail are named and left out.

    Args:
        logs: folder for what systems write to standard error.
    """
    measured = Measured([{} for _ in jobs])
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        contestants = []
        for system in systems:
            log = logs / f"{system.name.replace(' ', '-')}.log"
            contestant = Contestant(system, setup, warm_up_jobs(jobs), log, limits)
            opened.callback(contestant.close)
            try:
                measured.loaded[system.name] = contestant.start()
            except PeerError as error:
                measured.errors[system.name] = str(error)
                progress(f"{system.name}: {error}")
                continue
            contestants.append(contestant)
            progress(f"{system.name}: ready in {measured.loaded[system.name][1]:.1f} s")
        end = clock() + limits.total_s
        for repeat, number in turns(repeats, len(jobs)):
            job = jobs[number]
            first = (repeat + number) % max(len(contestants), 1)
            for contestant in (*contestants[first:], *contestants[:first]):
                name = contestant.system.name
                if (number, name) in measured.failures:
                    continue
                left = end - clock()
                if left <= 0:
                    measured.is_complete = False
                    return measured
                try:
                    result = contestant.run(job, min(limits.job_s, left))
                except PeerError as error:
                    if clock() >= end:  # it was not given the time
                        measured.is_complete = False
                        return measured
                    measured.failures[number, name] = str(error)
                    progress(f"{name}: {job.name}, {job.concurrency} at once: {error}")
                    continue
                measured.results[number].setdefault(name, []).append(result)
                progress(
                    f"repeat {repeat + 1} of {repeats}, {job.name}, {job.concurrency} at once, {name}: "
                    f"{result.tokens_per_s:.1f} tokens/s"
                )
    return measured


def turns(repeats: int, num_jobs: int) -> Iterator[tuple[int, int]]:
    """(repeat, job): all jobs once, then all again, so that a run that is cut short has every job."""
    for repeat in range(repeats):
        for number in range(num_jobs):
            yield repeat, number


def warm_up_jobs(jobs: Sequence[Job]) -> list[Job]:
    """The first job of each concurrency, with a few tokens."""
    first: dict[int, Job] = {}
    for job in jobs:
        first.setdefault(job.concurrency, job)
    return [
        replace(job, prompts=job.prompts[: job.concurrency], max_new_tokens=min(WARM_UP_TOKENS, job.max_new_tokens))
        for job in first.values()
    ]
