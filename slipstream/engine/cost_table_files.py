"""Cost tables as files."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.config import SettingError
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.cost_table_json import cost_table_from_json, cost_table_to_json


def read_cost_table(path: str | Path) -> CostTable:
    """Raises SettingError naming the file and what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"cost table {path} could not be read: {error}") from None
    try:
        return cost_table_from_json(json.loads(text))
    except ValueError as error:
        raise SettingError(f"cost table {path}: {error}") from None


def write_cost_table(table: CostTable, path: str | Path) -> None:
    """Raises SettingError when the file cannot be written."""
    try:
        Path(path).write_text(json.dumps(cost_table_to_json(table), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingError(f"the cost table could not be written to {path}: {error}") from None
