"""The process, as `slipstream` and `python -m slipstream`: Ctrl-C ends it quietly at any moment, imports included."""

from __future__ import annotations

import signal

INTERRUPTED = 130


def run() -> int:
    """Run the command line; gives the exit status."""
    try:
        from slipstream.cli import main

        status = main()
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        status = INTERRUPTED
    if status == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C, while the interpreter ends, kills at once
    return status


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it: a C extension that it meets while being imported raises an error of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


if __name__ == "__main__":
    raise SystemExit(run())
