"""Commands as they may be kept in a checkpoint that others read."""

from __future__ import annotations

import shlex
from pathlib import PurePath


def without_folders(command: str) -> str:
    """The command with every path by its last name: a checkpoint tells nobody where its maker keeps things."""
    return shlex.join(_without_folder(word) for word in shlex.split(command))


def _without_folder(word: str) -> str:
    if word.startswith(("{", "[")):  # JSON
        return word
    flag, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
    return flag + equals + (PurePath(value).name if "/" in value or "\\" in value else value)
