"""A system in a process of its own, stopped while others are measured."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from peers.environment import BENCHMARKS, PeerError, last_error
from peers.jobs import Job, Loaded, Result, Setup

QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
END_LIMIT_S = 20.0


class SystemProcess:
    """Loads a system, then runs jobs on it. In between, the process and its children do not run at all.

    Attributes:
        loaded: what it said when it was ready. ready_s: seconds from its start to then.
    """

    def __init__(
        self, command: Sequence[str], setup: Setup, log: Path, limit_s: float, *, python_path: str = ""
    ) -> None:
        """Start it in the folder of the benchmarks. Raises PeerError when it is not ready in `limit_s` seconds.

        Args:
            log: where its standard error goes. python_path: in place of this process's own, which peers must not see.
        """
        self._log = log
        begin = time.perf_counter()
        with log.open("w", encoding="utf-8") as file:
            try:
                self._process = subprocess.Popen(
                    command,
                    cwd=BENCHMARKS,
                    env={**os.environ, **QUIET, "PYTHONPATH": python_path},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,
                )
            except OSError as error:
                raise PeerError(f"cannot be started: {error}") from error
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.loaded = Loaded.from_line(self._ask(setup.to_line(), limit_s))
        except BaseException:  # ended from outside too, it must not stay
            self.close()
            raise
        self.ready_s = time.perf_counter() - begin
        self._signal(signal.SIGSTOP)

    def run(self, job: Job, limit_s: float) -> Result:
        """Raises PeerError when it fails or takes longer; then it must be closed."""
        self._signal(signal.SIGCONT)
        result = Result.from_line(self._ask(job.to_line(), limit_s))
        self._signal(signal.SIGSTOP)
        return result

    def close(self) -> None:
        """End the process and its children."""
        self._signal(signal.SIGCONT)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):  # its children may have outlived it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, line: str, limit_s: float) -> str:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it ended, and its log says why
        try:
            answer = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._signal(signal.SIGKILL)
            raise PeerError(f"no answer in {limit_s:.0f} s (see {self._log})") from None
        if not answer:
            status = self._process.wait()
            raise PeerError(f"{last_error(self._log) or f'ended with status {status}'} (see {self._log})")
        return answer

    def _read(self) -> None:
        """In a thread of its own, so that waiting for a line has a limit; the last line is empty."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
