"""The JSON form of a CostTable, a documented format (docs/cost-tables.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slipstream.config import SettingError, shown
from slipstream.scheduler.cost_table import AttentionCost, CostTable, HostCost, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.interpolation import MAX_MS, Curve, Grid
from slipstream.scheduler.protocol import StepMode

FORMAT = "slipstream-cost-table/1"


def cost_table_to_json(table: CostTable) -> dict[str, Any]:
    """JSON-ready; `cost_table_from_json` gives an equal table back."""
    return {
        "format": FORMAT,
        "provenance": {**dataclasses.asdict(table.provenance), "notes": list(table.provenance.notes)},
        "version": table.version,
        "decode_graphs": table.decode_graphs.value,
        "capture_sizes": list(table.capture_sizes),
        "target_ms": {
            mode.value: _grid_to_json(grid, "num_rows", "num_kv_tokens") for mode, grid in table.target.items()
        },
        "draft_ms": None if table.draft is None else _grid_to_json(table.draft, "num_requests", "rows_per_request"),
        "sampling_ms": None
        if table.sampling is None
        else {"num_rows": list(table.sampling.points), "ms": list(table.sampling.ms)},
        "attention_ms": {"per_request": table.attention.per_request_ms, "per_pair": table.attention.per_pair_ms},
        "host_ms": {"per_step": table.host.per_step_ms, "per_request": table.host.per_request_ms},
        "corrections": {mode.value: factor for mode, factor in table.corrections.items()},
    }


def cost_table_from_json(value: object) -> CostTable:
    """Raises SettingError naming the key that is missing, unknown or out of range."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise SettingError(f'a cost table is a JSON object with "format": "{FORMAT}", got {shown(found)}')
    known = (
        *("format", "provenance", "version", "decode_graphs", "capture_sizes"),
        *("target_ms", "draft_ms", "sampling_ms", "attention_ms", "host_ms", "corrections"),
    )
    _refuse_unknown("cost table", value, known)
    target = _mapping(value, "target_ms")
    sampling, draft = value.get("sampling_ms"), value.get("draft_ms")
    attention = _linear(value, "attention_ms", "per_request", "per_pair")
    host = _linear(value, "host_ms", "per_step", "per_request")
    corrections = value.get("corrections", {})
    if not isinstance(corrections, dict):
        raise SettingError(f"cost table: corrections must be an object of factors by mode, got {shown(corrections)}")
    version = value.get("version", 0)
    if not isinstance(version, int) or isinstance(version, bool) or version < 0:
        raise SettingError(f"cost table: version must be a whole number from 0 on, got {shown(version)}")
    return CostTable(
        provenance=_provenance(_mapping(value, "provenance")),
        target={
            _member(StepMode, "target_ms", mode): _grid(f"target_ms.{mode}", grid, "num_rows", "num_kv_tokens")
            for mode, grid in target.items()
        },
        draft=None if draft is None else _grid("draft_ms", draft, "num_requests", "rows_per_request"),
        sampling=None if sampling is None else _curve("sampling_ms", sampling),
        attention=AttentionCost(*attention),
        host=HostCost(*host),
        decode_graphs=_member(DecodeGraphs, "decode_graphs", value.get("decode_graphs", "none")),
        capture_sizes=tuple(
            int(size) for size in _numbers(value.get("capture_sizes", []), "capture_sizes", whole=True)
        ),
        corrections={
            _member(StepMode, "corrections", mode): _number(corrections, "corrections", mode) for mode in corrections
        },
        version=version,
    )


def _grid_to_json(grid: Grid, rows: str, columns: str) -> dict[str, Any]:
    return {rows: list(grid.rows), columns: list(grid.columns), "ms": [list(line) for line in grid.ms]}


def _refuse_unknown(name: str, value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise SettingError(f"{name}: unknown key {shown(key)}; known keys are {', '.join(known)}")


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    if not isinstance(inner, dict):
        raise SettingError(f"cost table: {key} must be a JSON object, got {shown(inner)}")
    return inner


def _provenance(value: Mapping[str, Any]) -> Provenance:
    names = tuple(f.name for f in dataclasses.fields(Provenance))
    _refuse_unknown("cost table: provenance", value, names)
    for key in ("machine", "model"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise SettingError(f"cost table: provenance.{key} is missing; say what was measured")
    notes = value.get("notes", [])
    texts = [value.get(key, "") for key in names if key != "notes"]
    if not isinstance(notes, list) or not all(isinstance(text, str) for text in [*texts, *notes]):
        raise SettingError("cost table: provenance holds texts, and notes a list of texts")
    return Provenance(**{**value, "notes": tuple(notes)})


def _member(kind: Any, name: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise SettingError(
            f"cost table: {name} has {shown(value)}; choose one of {', '.join(member.value for member in kind)}"
        ) from None


def _numbers(value: object, name: str, *, whole: bool = False) -> list[float]:
    kinds = (int,) if whole else (int, float)
    if not isinstance(value, list) or not all(isinstance(x, kinds) and not isinstance(x, bool) for x in value):
        numbers = "whole numbers" if whole else "numbers"
        raise SettingError(f"cost table: {name} must be a list of {numbers}, got {shown(value)}")
    return value


def _linear(value: Mapping[str, Any], name: str, *keys: str) -> list[float]:
    """The numbers of a part that may be left out, as a whole or key by key."""
    part = value.get(name, {})
    if not isinstance(part, dict):
        raise SettingError(f"cost table: {name} must be an object with {' and '.join(keys)}, got {shown(part)}")
    _refuse_unknown(f"cost table: {name}", part, keys)
    return [_number(part, name, key) for key in keys]


def _number(value: Mapping[str, Any], name: str, key: str) -> float:
    number = value.get(key, 0.0)
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number <= MAX_MS:
        raise SettingError(f"cost table: {name}.{key} must be a number from 0 to {MAX_MS:g}, got {shown(number)}")
    return float(number)


def _grid(name: str, value: object, rows: str, columns: str) -> Grid:
    if not isinstance(value, dict) or not isinstance(value.get("ms"), list):
        raise SettingError(f"cost table: {name} must be an object with {rows}, {columns} and ms")
    _refuse_unknown(f"cost table: {name}", value, (rows, columns, "ms"))
    try:
        return Grid(
            tuple(_numbers(value.get(rows), f"{name}.{rows}")),
            tuple(_numbers(value.get(columns), f"{name}.{columns}")),
            tuple(tuple(_numbers(line, f"{name}.ms")) for line in value["ms"]),
        )
    except SettingError as error:
        raise SettingError(f"cost table: {name}: {error}") from None


def _curve(name: str, value: object) -> Curve:
    if not isinstance(value, dict):
        raise SettingError(f"cost table: {name} must be an object with num_rows and ms")
    _refuse_unknown(f"cost table: {name}", value, ("num_rows", "ms"))
    try:
        return Curve(
            tuple(_numbers(value.get("num_rows"), f"{name}.num_rows")), tuple(_numbers(value.get("ms"), f"{name}.ms"))
        )
    except SettingError as error:
        raise SettingError(f"cost table: {name}: {error}") from None
