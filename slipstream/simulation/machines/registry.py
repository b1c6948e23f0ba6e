"""Machines by name, for scenarios: `b300-v4-flash`, or `roofline:HARDWARE:ARCHITECTURE:tpN`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from slipstream.config import SettingError, shown
from slipstream.scheduler.cost_table import CostTable
from slipstream.simulation.machines.architectures import ARCHITECTURES
from slipstream.simulation.machines.drafter_figures import DRAFTERS
from slipstream.simulation.machines.hardware import HARDWARE
from slipstream.simulation.machines.published import b300_v4_flash, gb300_v41_flash
from slipstream.simulation.machines.roofline import roofline_table
from slipstream.simulation.machines.v4_pro import fit_v4_pro

PUBLISHED: Mapping[str, Callable[[], CostTable]] = {
    "b300-v4-flash": b300_v4_flash,
    "gb300-v4.1-flash": gb300_v41_flash,
    "b300-v4-pro": fit_v4_pro,
}
_ROOFLINE = "roofline"


def machine_names() -> list[str]:
    """Every name; of rooflines with one accelerator (`:tp2`, `:tp4` … are more)."""
    rooflines = [
        f"{_ROOFLINE}:{hardware}:{architecture}:tp1"
        for hardware, figures in HARDWARE.items()
        for architecture, model in ARCHITECTURES.items()
        if model.precision in figures.flops
    ]
    return [*PUBLISHED, *rooflines]


def machine_named(name: str) -> CostTable:
    """The machine of that name.

    Raises:
        SettingError: no such name, with the nearest and the form that names have.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]()
    kind, *parts = name.split(":")
    if kind != _ROOFLINE or len(parts) not in (2, 3):
        raise _unknown("machine", name, machine_names())
    hardware = HARDWARE.get(parts[0])
    if hardware is None:
        raise _unknown(f"machine {shown(name)}: hardware", parts[0], HARDWARE)
    architecture = ARCHITECTURES.get(parts[1])
    if architecture is None:
        raise _unknown(f"machine {shown(name)}: architecture", parts[1], ARCHITECTURES)
    degree = parts[2] if len(parts) == 3 else "tp1"
    if not (degree.startswith("tp") and degree[2:].isdecimal() and len(degree) <= 8):
        raise SettingError(
            f"machine {shown(name)}: the last part says the tensor parallel degree as tp1, got {shown(degree)}"
        )
    return roofline_table(hardware, architecture, tensor_parallel=int(degree[2:]), drafter=DRAFTERS.get(parts[1]))


def _unknown(what: str, value: str, known: Iterable[str]) -> SettingError:
    names = list(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.4)
    nearest = f"; the nearest is {near[0]!r}" if near else ""
    published = ", ".join(name for name in names if not name.startswith(_ROOFLINE))
    form = f", {_ROOFLINE}:HARDWARE:ARCHITECTURE:tp1" if len(published) < len(", ".join(names)) else ""
    return SettingError(f"{what} {shown(value)} is not known; choose one of {published}{form}{nearest}")
