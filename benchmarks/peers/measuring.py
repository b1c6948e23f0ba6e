"""Runs jobs on a system, inside its own process. Only the standard library is used."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

from peers.jobs import Job, Loaded, Result, Setup


class Engine(Protocol):
    """A loaded system.

    Attributes:
        kv_bytes: set apart for keys and values since the last `prepare`; None where not known.
    """

    versions: dict[str, str]
    details: dict[str, Any]
    kv_bytes: int | None

    def prepare(self, job: Job) -> None:
        """What is not timed, such as forgetting the prompts of earlier jobs."""
        ...

    def answer(self, job: Job) -> list[list[int]]:
        """Token ids of each prompt's answer; a token that ended one may be there or not."""
        ...

    def acceptance_length(self) -> float | None:
        """Mean tokens of a decode step since `prepare`; None for a system that does not draft."""
        ...


class SteppedEngine(Protocol):
    """An engine that serves many requests, a step at a time."""

    def add(self, index: int, prompt: Sequence[int], job: Job) -> None:
        """Begin with a prompt; `index` names it."""
        ...

    def step(self) -> Iterable[tuple[int, Sequence[int], bool]]:
        """(index, new token ids, whether it has ended) of requests that got on."""
        ...


def closed_loop(engine: SteppedEngine, job: Job) -> list[list[int]]:
    """Answers of all prompts, `job.concurrency` of them at a time."""
    answers: list[list[int]] = [[] for _ in job.prompts]
    waiting = enumerate(job.prompts)
    num_running = 0
    for index, prompt in islice(waiting, job.concurrency):
        engine.add(index, prompt, job)
        num_running += 1
    while num_running:
        for index, token_ids, has_ended in engine.step():
            answers[index] += token_ids
            if not has_ended:
                continue
            num_running -= 1
            for following, prompt in islice(waiting, 1):
                engine.add(following, prompt, job)
                num_running += 1
    return answers


def measure(engine: Engine, job: Job, eos_token_ids: Sequence[int]) -> Result:
    """Run a job.

    Raises:
        RuntimeError: an answer is longer than asked for, or EOS is ignored and it is shorter.
    """
    engine.prepare(job)
    begin = time.perf_counter()
    answers = engine.answer(job)
    seconds = time.perf_counter() - begin
    if not job.ignore_eos:
        answers = [cut_at(answer, eos_token_ids) for answer in answers]
    for index, answer in enumerate(answers):
        if len(answer) > job.max_new_tokens or (job.ignore_eos and len(answer) != job.max_new_tokens):
            raise RuntimeError(f"answer {index} has {len(answer)} tokens, {job.max_new_tokens} were asked for")
    return Result(
        seconds=seconds,
        num_prompt_tokens=sum(map(len, job.prompts)),
        token_ids=answers,
        resident_bytes=resident_bytes(),
        kv_bytes=engine.kv_bytes,
        acceptance_length=engine.acceptance_length(),
    )


def cut_at(answer: Sequence[int], eos_token_ids: Sequence[int]) -> list[int]:
    """An answer up to its first EOS, which is left out: not all systems give it out."""
    for position, token_id in enumerate(answer):
        if token_id in eos_token_ids:
            return list(answer[:position])
    return list(answer)


def serve(load: Callable[[Setup], Engine]) -> None:
    """Be the process of a system: read Setup and Jobs from standard input, write Loaded and Results to standard output.

    Whatever packages print goes to standard error. An exception ends the process.
    """
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    setup = Setup.from_line(sys.stdin.readline())
    begin = time.perf_counter()
    engine = load(setup)
    loaded = Loaded(
        load_s=time.perf_counter() - begin,
        resident_bytes=resident_bytes(),
        versions=engine.versions,
        details=engine.details,
    )
    _write(results, loaded.to_line())
    while line := sys.stdin.readline():
        _write(results, measure(engine, Job.from_line(line), setup.eos_token_ids).to_line())


def resident_bytes() -> int | None:
    """Memory in use now by this process and those that it made (its process group); None where it cannot be told.

    What several of them share counts for each.
    """
    group, pages = os.getpgrp(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if os.getpgid(int(folder.name)) == group:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") or None


def versions_of(*packages: str) -> dict[str, str]:
    """Versions of installed packages."""
    return {package: metadata.version(package) for package in packages}


def _write(file: TextIO, line: str) -> None:
    file.write(line + "\n")
    file.flush()
