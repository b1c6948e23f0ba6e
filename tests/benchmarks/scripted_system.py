"""A system without a model, for tests of what measures systems: run as a process, it fails as it is told to.

python scripted_system.py [load|job|hang|noise|child]
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from peers.jobs import Job, Setup
from peers.measuring import closed_loop, serve


class ScriptedEngine:
    """Answers with the prompt's last token counted upward; EOS is 9. See Engine and SteppedEngine."""

    kv_bytes = 64

    def __init__(self, fault: str = "") -> None:
        self.versions = {"scripted": "1.0"}
        self.details: dict[str, object] = {"fault": fault}
        self.most_running = 0
        self.order: list[int] = []
        self._fault = fault
        self._running: dict[int, tuple[int, int, bool]] = {}

    def prepare(self, job: Job) -> None:
        """Forgets."""
        self.most_running, self.order = 0, []

    def answer(self, job: Job) -> list[list[int]]:
        """See Engine."""
        if self._fault == "job" and job.temperature:
            raise RuntimeError("error: temperatures are too hot")
        if self._fault == "hang":
            time.sleep(60)
        return closed_loop(self, job)

    def add(self, index: int, prompt: Sequence[int], job: Job) -> None:
        """See SteppedEngine."""
        self.order.append(index)
        self._running[index] = (prompt[-1], prompt[-1] + job.max_new_tokens, job.ignore_eos)
        self.most_running = max(self.most_running, len(self._running))

    def step(self) -> Iterator[tuple[int, Sequence[int], bool]]:
        """See SteppedEngine."""
        for index, (last, end, ignore_eos) in list(self._running.items()):
            has_ended = last + 1 == end or (last + 1 == 9 and not ignore_eos)
            if has_ended:
                del self._running[index]
            else:
                self._running[index] = (last + 1, end, ignore_eos)
            yield index, [last + 1], has_ended

    def acceptance_length(self) -> float | None:
        """As if it drafted."""
        return 1.5


def load(setup: Setup) -> ScriptedEngine:
    """Fails where it is told to."""
    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    if fault == "load":
        raise RuntimeError("error: this processor lacks an instruction set")
    if fault == "noise":
        print("a package's banner")
    engine = ScriptedEngine(fault)
    if fault == "child":
        engine.details["child"] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid
    return engine


if __name__ == "__main__":
    serve(load)
