"""Text files that people name: read whole, within limits; what is wrong with one is said in a line."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from slipstream.config import SettingError

MAX_BYTES = 256 << 20


def check_regular(path: Path, what: str) -> None:
    """Raise SettingError unless `path` is a regular file: a pipe may never end, and a device hold anything.

    Args:
        what: names the file in errors, such as `scenario`.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise SettingError(f"{what} {shown_path(path)} cannot be read: {_reason(error)}") from None
    if stat.S_ISDIR(mode):
        raise SettingError(f"{what} {shown_path(path)} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise SettingError(f"{what} {shown_path(path)} is a pipe or a device; save it as a file first")


def read_text(path: str | Path, what: str) -> str:
    """The text of a file. Raises SettingError when it cannot be read, is not UTF-8, or is larger than MAX_BYTES."""
    path = Path(path)
    check_regular(path, what)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise SettingError(f"{what} {path} has {size} bytes; {MAX_BYTES} are read at most")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{what} {path} cannot be read: {_reason(error)}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{what} {path} is not UTF-8: {error}") from None


def parse_json(text: str | bytes) -> Any:
    """JSON whose objects have each key once. Raises SettingError saying what is wrong with it."""
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except SettingError:
        raise
    except RecursionError:
        raise SettingError("nested too deeply") from None
    except ValueError as error:
        raise SettingError(f"no JSON ({error})") from None


def shown_path(path: str | Path) -> str:
    """The name on one line of bearable length."""
    name = str(path)
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= 300 else f"{name[:200]}…{name[-80:]}"


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingError(f"the key {twice[:80]!r} stands there twice; keep one")
    return values


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
