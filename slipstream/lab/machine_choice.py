"""MachineChoice: the machine a scenario names, with the figures it overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.config import SettingError
from slipstream.engine.cost_table_files import read_cost_table
from slipstream.lab.toml_section import Section
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.simulation.machines.published import with_mixed_ms, with_piecewise_ms
from slipstream.simulation.machines.registry import machine_named

_OVERRIDES: dict[str, Callable[[CostTable, Any], CostTable]] = {
    "mixed_ms": with_mixed_ms,
    "piecewise_ms": with_piecewise_ms,
    "decode_graphs": lambda table, value: replace(table, decode_graphs=DecodeGraphs(value)),
}
OVERRIDE_KEYS = tuple(_OVERRIDES)
MACHINE_KEYS = ("name", "file", *OVERRIDE_KEYS)
_MAX_MS = 1e6


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """A machine by name or a cost table in a file, and overrides.

    Attributes:
        name: of the machine; the file's path where `base` came from one.
        overrides: figures of OVERRIDE_KEYS that stand in place of the machine's own.
    """

    name: str
    base: CostTable = field(repr=False)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def with_overrides(self, overrides: Mapping[str, Any]) -> MachineChoice:
        """With further overrides, which win."""
        return replace(self, overrides={**self.overrides, **overrides}) if overrides else self

    def build(self) -> CostTable:
        """What steps cost. Raises SettingError for an override that the table does not go with."""
        table = self.base
        for key, override in _OVERRIDES.items():
            if key in self.overrides:
                table = override(table, self.overrides[key])
        return table

    def in_words(self) -> str:
        """For reports."""
        return ", ".join([self.name, *(f"{key} {value}" for key, value in self.overrides.items())])


def read_machine(section: Section, folder: Path) -> MachineChoice:
    """From `[machine]`; `folder` is where its file is looked for."""
    if ("name" in section) == ("file" in section):
        raise SettingError(f"{section.where} needs name, a machine that is known, or file, a cost table; one of them")
    if "file" in section:
        path = folder / section.text("file")
        return MachineChoice(str(path), read_cost_table(path), read_overrides(section))
    name = section.text("name")
    return MachineChoice(name, machine_named(name), read_overrides(section))


def read_overrides(section: Section) -> dict[str, Any]:
    """The figures that a table overrides."""
    overrides: dict[str, Any] = {
        key: section.number(key, low=0.0, high=_MAX_MS, above=True)
        for key in ("mixed_ms", "piecewise_ms")
        if key in section
    }
    if "decode_graphs" in section:
        overrides["decode_graphs"] = section.choice("decode_graphs", [graphs.value for graphs in DecodeGraphs])
    return overrides
