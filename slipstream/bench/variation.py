"""Settings by name: `draft_budget=shared,separate` becomes one settings tree per value."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.config import (
    CacheSettings,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
    speculative_settings_from,
)

_SECTIONS: dict[str, type] = {
    "scheduler": SchedulerSettings,
    "cache": CacheSettings,
    "speculative": SpeculativeSettings,
}


@dataclass(frozen=True, slots=True)
class Variation:
    """A setting and the values to compare, each with the settings that hold it."""

    name: str
    values: tuple[str, ...]
    settings: tuple[Settings, ...]


def known_settings() -> dict[str, str]:
    """Setting name -> the section of the settings tree that holds it."""
    return {field.name: section for section, kind in _SECTIONS.items() for field in dataclasses.fields(kind)}


def parse_variation(text: str, base: Settings) -> Variation:
    """Read `name=a,b[,c…]`.

    Raises:
        SettingError: another shape, an unknown name (the known ones are listed), or a value of the wrong type.
    """
    name, equals, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    values = tuple(value.strip() for value in listed.split(","))
    if not equals or len(values) < 2 or not all(values):
        raise SettingError(f"--vary takes a setting and at least two values, NAME=A,B; got {text!r}")
    if len(set(values)) < len(values):
        raise SettingError(f"--vary {text}: a value is named twice; a run against itself shows nothing")
    return Variation(name, values, tuple(with_setting(base, name, value) for value in values))


def with_setting(settings: Settings, name: str, value: str, flag: str = "--vary") -> Settings:
    """The same settings with one value, given as text, replaced; `method=none` switches speculation off.

    Errors name `flag`.
    """
    section = known_settings().get(name)
    if section is None:
        raise SettingError(f"{flag}: unknown setting {name!r}; known are {', '.join(sorted(known_settings()))}")
    kind = _SECTIONS[section]
    if section == "speculative":
        if name == "method" and value == "none":
            return dataclasses.replace(settings, speculative=None)
        if settings.speculative is None and name != "method":
            raise SettingError(f"{flag} {name}: speculation is off; give a --speculative-config first")
        current = {} if settings.speculative is None else dataclasses.asdict(settings.speculative)
        current = {key: entry for key, entry in current.items() if entry not in (None, ())}  # what was not given
        if name == "method" and value != "forced":  # these two belong to forced alone
            current = {key: entry for key, entry in current.items() if key not in ("layout", "acceptance_length")}
        return dataclasses.replace(
            settings, speculative=speculative_settings_from(current | {name: parse_value(kind, name, value)})
        )
    changed = dataclasses.replace(getattr(settings, section), **{name: parse_value(kind, name, value)})
    return dataclasses.replace(settings, **{section: changed})


def parse_value(kind: type, name: str, text: str) -> Any:
    """A field's value from text, in the type the dataclass `kind` declares. Raises SettingError."""
    wanted: Any = typing.get_type_hints(kind)[name]
    choices: Sequence[Any] = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if type(None) in choices and text.lower() in ("none", "auto"):
        return None
    if bool in choices:
        if text.lower() not in ("true", "false"):
            raise SettingError(f"{name}: expected true or false, got {text!r}")
        return text.lower() == "true"
    for convert in (int, float):
        if convert in choices:
            try:
                return convert(text)
            except ValueError:
                continue
    if str in choices:
        return text
    raise SettingError(f"{name}: expected a number, got {text!r}")
