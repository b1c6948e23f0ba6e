"""The process, as `slipstream` and `python -m slipstream`: Ctrl-C ends it quietly at any moment, imports included."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
_IMPORTING = "<frozen importlib._bootstrap>"


def run() -> int:
    """Run the command line; gives the exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from slipstream.cli import main

        status = main()
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C, while the interpreter ends, kills at once
    return status


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End at once while a module is imported: packages answer the exception with errors of their own, or swallow it."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(run())
