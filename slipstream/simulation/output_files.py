"""Files that commands write: refused before the work where they cannot be written, and never left half written."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from slipstream.config import SettingError
from slipstream.simulation.input_files import shown_path


def check_outputs(outputs: Mapping[str, str | Path | None], inputs: Mapping[str, str | Path] | None = None) -> None:
    """Raise SettingError unless every file can be written, and none is another one or an input.

    Args:
        outputs: flag -> file, None where it was not given. inputs: what they are -> file.
    """
    taken = {os.path.realpath(path): what for what, path in (inputs or {}).items() if "\0" not in str(path)}
    for flag, name in outputs.items():
        if name is None:
            continue
        check_output(flag, name)
        real = os.path.realpath(name)
        if real in taken and not _is_special(real):
            raise SettingError(f"{flag} {name} would overwrite {taken[real]}; name another file")
        taken[real] = f"what {flag} writes"


def check_output(flag: str, name: str | Path) -> None:
    """Raise SettingError unless a file of this name can be written; nothing is written yet."""
    path = Path(name)
    if "\0" in str(name) or not str(name):
        raise SettingError(f"{flag} {str(name)!r} is no name of a file")
    if path.is_dir():
        raise SettingError(f"{flag} {shown_path(path)} is a directory; name a file in it")
    if path.is_symlink() and Path(os.path.realpath(path)).is_symlink():
        raise SettingError(f"{flag} {shown_path(path)} is a link that leads back to itself")
    if not path.parent.is_dir():
        raise SettingError(f"{flag} {shown_path(path)}: there is no folder {shown_path(path.parent)} to write it in")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise SettingError(f"{flag} {shown_path(path)}: there is no permission to write it")


def write_text(name: str | Path, text: str) -> None:
    """Write a file whole: an interrupt or a full disk leaves the old one, or none. Raises OSError."""
    real = Path(os.path.realpath(name))
    if _is_special(str(real)) or not os.access(real.parent, os.W_OK):
        real.write_text(text, encoding="utf-8")
        return
    part = real.with_name(f".{real.name[:100]}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        if real.exists():
            part.chmod(stat.S_IMODE(real.stat().st_mode))
        part.replace(real)
    finally:
        part.unlink(missing_ok=True)


def _is_special(path: str) -> bool:
    """Whether it is there and neither a file nor a folder: /dev/null, say."""
    return os.path.exists(path) and not os.path.isfile(path)
