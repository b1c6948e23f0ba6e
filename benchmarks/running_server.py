"""A `slipstream serve` of its own on a free port, for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

START_S = 600
STOP_S = 60
READY = re.compile(r"^Ready: (http://\S+)")


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that answers.

    Attributes:
        url: without `/v1`. pid: of the server. lines: everything it has said, so far.
    """

    url: str
    pid: int
    lines: list[str]


@contextlib.contextmanager
def running_server(model: str, flags: Sequence[str] = (), *, start_s: float = START_S) -> Iterator[ServerProcess]:
    """Start it, wait until it is ready, stop it at the end.

    Raises:
        RuntimeError: it does not start; with what it said.
    """
    command = [sys.executable, "-m", "slipstream", "serve", model, "--host", "127.0.0.1", "--port", "0", *flags]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    ready = threading.Event()
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if READY.match(line):
                    ready.set()
            ready.set()  # it ended

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            is_up = ready.wait(start_s)
            found = [match[1] for line in lines if (match := READY.match(line))]
            if not found:
                raise RuntimeError(("it ended" if is_up else f"not ready within {start_s} s") + ":\n" + "".join(lines))
            yield ServerProcess(found[0], process.pid, lines)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
            reader.join(STOP_S)
