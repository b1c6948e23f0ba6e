"""Cost tables as files."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.config import SettingError
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.cost_table_json import cost_table_from_json, cost_table_to_json
from slipstream.simulation.input_files import parse_json, read_text
from slipstream.simulation.output_files import write_text


def read_cost_table(path: str | Path) -> CostTable:
    """Raises SettingError naming the file and what is wrong with it."""
    text = read_text(path, "cost table")
    try:
        return cost_table_from_json(parse_json(text))
    except SettingError as error:
        raise SettingError(f"cost table {path}: {str(error).removeprefix('cost table: ')}") from None


def write_cost_table(table: CostTable, path: str | Path) -> None:
    """Raises SettingError when the file cannot be written."""
    try:
        write_text(path, json.dumps(cost_table_to_json(table), indent=2) + "\n")
    except OSError as error:
        raise SettingError(f"the cost table could not be written to {path}: {error.strerror or error}") from None
