"""RecordingFile: lines on their way to a disk, soon and in bounded memory."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
import zlib
from io import FileIO
from pathlib import Path

from slipstream.config import SettingError

logger = logging.getLogger(__name__)

FLUSH_S = 1.0
FLUSH_BYTES = 1 << 20
_LEVEL = 1


class RecordingFile:
    """Appends lines; gzip where the name ends in .gz.

    What was written is on its way to the disk FLUSH_S seconds or FLUSH_BYTES bytes later at most (looked at with each
    line), so that a crash leaves all but the last moment. A disk that fails ends the recording, not the run.
    """

    def __init__(self, path: Path) -> None:
        """An existing file is replaced. Raises SettingError when it cannot be written."""
        self._file: FileIO | None = _opened(path)
        self._path = path
        self._deflate = zlib.compressobj(_LEVEL, wbits=31) if path.name.endswith(".gz") else None
        self._lines: list[str] = []
        self._num_chars = 0
        self._flushed = time.monotonic()

    def append(self, line: str) -> None:
        """Add a line (without its end)."""
        self._lines.append(line)
        self._num_chars += len(line)
        if self._num_chars >= FLUSH_BYTES or time.monotonic() - self._flushed >= FLUSH_S:
            self._flush(zlib.Z_SYNC_FLUSH)

    def close(self) -> None:
        """Write what is left; further lines are dropped."""
        self._flush(zlib.Z_FINISH)
        if self._file is not None:
            self._file.close()
        self._file = None

    def _flush(self, mode: int) -> None:
        lines, self._lines, self._num_chars = self._lines, [], 0
        self._flushed = time.monotonic()
        if self._file is None:
            return
        data = "".join(line + "\n" for line in lines).encode()
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(mode)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            logger.error("recording to %s ends here: %s", self._path, error)
            self._file = None


def _opened(path: Path) -> FileIO:
    """The file, emptied and locked: of two runs that record to one file the second is refused."""
    try:
        # Not emptied before it is locked. A pipe without a reader fails instead of waiting for one.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise SettingError(f"--record {path}: cannot be written ({error.strerror or error})") from None
    file = FileIO(number, "w")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.set_blocking(number, True)
        return file
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SettingError(f"--record {path}: another run records to it; name another file") from None
    except OSError:
        pass  # a file system without locks
    file.truncate()
    return file
