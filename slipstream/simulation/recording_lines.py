"""The lines of a recording's file, gzip or plain, up to where it was cut off."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from slipstream.config import SettingError
from slipstream.simulation.input_files import shown_path

MAX_LINE_BYTES = 64 << 20
"""Far more than any line of a run; a file that inflates to more is no recording."""

_CHUNK = 1 << 16
_GZIP = b"\x1f\x8b"


def recording_lines(path: Path) -> Iterator[bytes]:
    """Without their ends. Raises SettingError for a file that cannot be read, or a line of more than MAX_LINE_BYTES."""
    rest: list[bytes] = []
    num_bytes = 0
    try:
        for piece in _pieces(path):
            first, *others = piece.split(b"\n")
            rest.append(first)
            num_bytes += len(first)
            if num_bytes > MAX_LINE_BYTES:
                raise SettingError(f"{shown_path(path)} is not a recording: a line has over {MAX_LINE_BYTES} bytes")
            if others:
                yield b"".join(rest)
                yield from others[:-1]
                rest, num_bytes = [others[-1]], len(others[-1])
    except zlib.error:
        return  # what follows a cut is noise
    except OSError as error:
        raise SettingError(f"{shown_path(path)} cannot be read: {error.strerror or error}") from None
    if num_bytes:
        yield b"".join(rest)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        data = file.read(_CHUNK)
        if not data.startswith(_GZIP):
            while data:
                yield data
                data = file.read(_CHUNK)
            return
        inflate = zlib.decompressobj(wbits=31)
        while data:
            yield inflate.decompress(data)
            data = inflate.unused_data  # files that were joined are read one after the other
            if data:
                inflate = zlib.decompressobj(wbits=31)
            data = data or file.read(_CHUNK)
