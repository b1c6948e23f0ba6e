"""Scenario files: TOML, documented in docs/simulation.md."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.config import MEASURED_COSTS, SettingError, shown
from slipstream.lab.acceptance_choice import ACCEPTANCE_KEYS, read_acceptance
from slipstream.lab.machine_choice import MACHINE_KEYS, OVERRIDE_KEYS, read_machine, read_overrides
from slipstream.lab.report_figures import FIGURE_NAMES
from slipstream.lab.scenario import (
    MACHINE_COSTS,
    NO_COSTS,
    SETTING_NAMES,
    SIMULATED_DEFAULTS,
    Fit,
    Published,
    Scenario,
    Variant,
    check_names,
    names_of,
)
from slipstream.lab.toml_section import Section, unknown_name
from slipstream.lab.workload import WORKLOAD_KEYS, read_workload
from slipstream.simulation.input_files import check_regular, read_text

_KEYS = (
    "extends",
    "title",
    "assumptions",
    "machine",
    "scheduler",
    "acceptance",
    "workload",
    "variant",
    "published",
    "fit",
)
_FIT_KEYS = ("variant", "parameter", "figures", "low", "high", "command", "values")


def load_scenario(path: str | Path, changes: Sequence[str] = ()) -> Scenario:
    """Read and check a scenario.

    Args:
        path: with `extends`, its top-level keys and tables stand in place of those of another file in the same folder.
        changes: `key=value` each, over the file: `max_num_seqs=32` for `[scheduler]`, `machine.mixed_ms=30` for others.

    Raises:
        SettingError: the file, its place and what is wrong there, with the nearest name or value that works.
    """
    path = Path(path)
    values = _read(path)
    for change in changes:
        _apply(values, change)
    try:
        return scenario_from(values, path.stem, path.parent)
    except SettingError as error:
        raise SettingError(f"scenario {path}: {error}") from None


def _read(path: Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The file's keys, over those of the file that it extends. `extending`: the files that led here, resolved."""
    text = read_text(path, "scenario")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise SettingError(f"scenario {path} is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and numbers of thousands of digits
        raise SettingError(f"scenario {path} is not TOML: {error}") from None
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise SettingError(f"scenario {path}: extends must name a file, got {shown(base)}")
    seen = (*extending, path.resolve())
    check_regular(path.parent / base, "scenario")
    if (path.parent / base).resolve() in seen:
        raise SettingError(f"scenario {path} extends itself, by way of {base!r}; name another file")
    return {**_read(path.parent / base, seen), **values}


def scenario_from(values: Mapping[str, Any], name: str, folder: Path) -> Scenario:
    """From what TOML was read into; files it names are looked for in `folder`. Raises SettingError."""
    top = Section("the top level", values, _KEYS)
    settings = _settings(Section("[scheduler]", values.get("scheduler", {}), None), folder)
    machine = read_machine(Section("[machine]", _required(values, "machine"), MACHINE_KEYS), folder)
    num_drafts = {**SIMULATED_DEFAULTS, **settings}["num_speculative_tokens"]
    acceptance = read_acceptance(
        Section("[acceptance]", _required(values, "acceptance"), ACCEPTANCE_KEYS),
        num_drafts if isinstance(num_drafts, int) and num_drafts > 0 else 1,
    )
    tables = top.sections("workload", "workload", WORKLOAD_KEYS)
    if not tables:
        raise SettingError("there is no [[workload]]; at least one is needed")
    workloads = tuple(read_workload(table, folder) for table in tables)
    _refuse_twice("[[workload]]", [workload.name for workload in workloads])
    variants = tuple(
        _variant(table, folder)
        for table in top.sections("variant", "variant", ("name", "baseline", "machine", *SETTING_NAMES))
    ) or (Variant("as set"),)
    _refuse_twice("[[variant]]", names_of(variants))
    for variant in variants:
        if variant.baseline is not None and variant.baseline not in names_of(variants):
            raise unknown_name(f"[[variant]] {variant.name!r}: baseline", variant.baseline, names_of(variants))
    return Scenario(
        name,
        top.text("title", name),
        machine,
        settings,
        acceptance,
        workloads,
        variants,
        top.texts("assumptions"),
        _published(top, variants) if "published" in top else None,
        _fit(top, variants, [workload.name for workload in workloads]) if "fit" in top else None,
    ).checked()


def _required(values: Mapping[str, Any], key: str) -> object:
    if key not in values:
        raise SettingError(f"there is no [{key}]")
    return values[key]


def _settings(section: Section, folder: Path) -> dict[str, Any]:
    settings = dict(section.values)
    check_names(settings, f"{section.where}: key")
    costs = settings.get("cost_table", MACHINE_COSTS)
    if not isinstance(costs, str):
        raise SettingError(
            f"{section.where}: cost_table must be {MACHINE_COSTS!r}, {NO_COSTS!r} or a file, got {shown(costs)}"
        )
    if costs in MEASURED_COSTS:
        raise SettingError(
            f"{section.where}: cost_table {costs!r} measures an engine; here use {MACHINE_COSTS!r}, "
            f"{NO_COSTS!r} or a file"
        )
    if costs not in (MACHINE_COSTS, NO_COSTS):
        settings["cost_table"] = str(folder / costs)
    return settings


def _variant(section: Section, folder: Path) -> Variant:
    settings = {key: value for key, value in section.values.items() if key in SETTING_NAMES}
    return Variant(
        section.text("name"),
        _settings(Section(section.where, settings, None), folder),
        read_overrides(section.section("machine", OVERRIDE_KEYS)),
        section.text("baseline") if "baseline" in section else None,
    )


def _published(top: Section, variants: Sequence[Variant]) -> Published:
    section = top.section("published", ("source", *names_of(variants)))
    rows = {}
    for name in names_of(variants):
        if name in section:
            row = section.section(name, FIGURE_NAMES)
            rows[name] = {figure: row.number(figure, above=True) for figure in row.values}
    return Published(section.text("source"), rows)


def _fit(top: Section, variants: Sequence[Variant], workloads: Sequence[str]) -> Fit:
    section = top.section("fit", _FIT_KEYS)
    low = section.number("low", above=True)
    high = section.number("high", low=low)
    figures = section.texts("figures")
    if not figures:
        raise SettingError(f"{section.where}: figures must name at least one of {', '.join(FIGURE_NAMES)}")
    for figure in figures:
        if figure not in FIGURE_NAMES:
            raise unknown_name(f"{section.where}: figure", figure, FIGURE_NAMES)
    variant = section.choice("variant", names_of(variants))
    published = top.section("published", ("source", *names_of(variants)))
    for figure in figures:
        if figure not in published.section(variant, FIGURE_NAMES):
            raise SettingError(f"{section.where}: [published.{variant}] has no {figure} to fit on")
    values = section.section("values", workloads)
    return Fit(
        variant,
        section.choice("parameter", ("mixed_ms",)),
        figures,
        low,
        high,
        {name: values.number(name, above=True) for name in values.values},
        section.text("command", ""),
    )


def _refuse_twice(what: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"{what}: two are named {name!r}; give each a name of its own")


def _apply(values: dict[str, Any], change: str) -> None:
    """Set `key=value` in a table that TOML was read into."""
    key, equals, text = change.partition("=")
    path = key.strip().replace("-", "_").split(".")
    if not equals or not all(path) or not text.strip():
        raise SettingError(f"--set takes a key and a value, KEY=VALUE, got {shown(change)}")
    if len(path) == 1:
        path = ["scheduler", *path]
    if path[0] in ("workload", "variant"):
        raise SettingError(f"--set {change}: there may be several [[{path[0]}]]; change the file")
    table: Any = values
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise SettingError(f"--set {change}: {part} is no table")
    for variant in values.get("variant", []) if path[0] == "scheduler" else []:
        if isinstance(variant, dict) and path[-1] in variant:
            raise SettingError(
                f"--set {change}: the variant {variant.get('name')!r} sets {path[-1]} itself; change it there"
            )
    table[path[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    """As TOML reads it; what TOML does not know is a text."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text
