"""RecordTo: where a run is recorded. Apart from the recorder, so that the command line stays light."""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import SettingError


@dataclass(frozen=True, slots=True)
class RecordTo:
    """Where to record. `with_text`: token ids and sampling parameters too."""

    path: Path
    with_text: bool = False

    def named(self, part: str) -> RecordTo:
        """The same place for one of several recordings: `run.jsonl.gz` -> `run.part.jsonl.gz`."""
        stem, dot, suffixes = self.path.name.partition(".")
        part = re.sub(r"[^\w.-]+", "-", part)
        return dataclasses.replace(self, path=self.path.with_name(f"{stem}.{part}{dot}{suffixes}"))

    def check(self) -> None:
        """Raise SettingError unless the file can be written; nothing is written yet."""
        path = self.path
        if path.is_dir():
            raise SettingError(f"--record {path} is a directory; name a file in it, such as {path / 'run.jsonl.gz'}")
        if not path.parent.is_dir():
            raise SettingError(f"--record {path}: there is no directory {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise SettingError(f"--record {path}: there is no permission to write it")
