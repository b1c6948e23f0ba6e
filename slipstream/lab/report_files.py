"""The reports of a command as files: checked before the work, written after it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from slipstream.simulation.output_files import check_outputs, write_text

FAILED = 1


def check_report_files(json_file: str | None, html_file: str | None, **inputs: str) -> None:
    """Raise SettingError unless both can be written. `inputs`: what was read -> file, not to be overwritten."""
    check_outputs({"--json": json_file, "--html": html_file}, {f"the {what}": path for what, path in inputs.items()})


def write_report_files(
    json_file: str | None, html_file: str | None, to_json: Callable[[], dict[str, Any]], to_html: Callable[[], str]
) -> int:
    """Write those that were asked for. Returns 0, or FAILED, said on stderr, when one could not be written."""

    def json_text() -> str:
        return json.dumps(to_json(), indent=2) + "\n"

    for flag, name, text_of in (("--json", json_file, json_text), ("--html", html_file, to_html)):
        if name is None:
            continue
        try:
            write_text(name, text_of())
        except OSError as error:
            print(f"slipstream: {flag} {name} could not be written: {error.strerror or error}", file=sys.stderr)
            return FAILED
    return 0
