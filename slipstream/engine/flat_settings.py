"""Settings by flat name, as flags and keyword arguments give them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from slipstream.config import (
    AUTO_METHOD,
    CacheSettings,
    ModelSettings,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
    parse_speculative_config,
    speculative_settings_from,
)

SPECULATIVE_CONFIG = "speculative_config"


def settings_from_flat(values: Mapping[str, Any]) -> Settings:
    """Build the tree from `{"max_num_seqs": 8, "speculative_config": {...}, …}`; what is not named keeps its default.

    `speculative_config` is a mapping, JSON text, SpeculativeSettings, or None for none; when it is not named it is
    `auto`: the drafter that ships for the model, else n-grams.

    Raises:
        SettingError: an unknown name, or a speculative config that cannot work.
    """
    parts: dict[str, dict[str, Any]] = {"model": {}, "cache": {}, "scheduler": {}}
    kinds = {"model": ModelSettings, "cache": CacheSettings, "scheduler": SchedulerSettings}
    place = {field.name: part for part, kind in kinds.items() for field in dataclasses.fields(kind)}
    for name, value in values.items():
        if name == SPECULATIVE_CONFIG:
            continue
        if name not in place:
            near = difflib.get_close_matches(name, [*place, SPECULATIVE_CONFIG], n=1)
            raise SettingError(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        parts[place[name]][name] = value
    return Settings(
        model=ModelSettings(**parts["model"]),
        cache=CacheSettings(**parts["cache"]),
        scheduler=SchedulerSettings(**parts["scheduler"]),
        speculative=_speculative(values.get(SPECULATIVE_CONFIG, AUTO_METHOD)),
    )


def _speculative(value: Any) -> SpeculativeSettings | None:
    if value is None or isinstance(value, SpeculativeSettings):
        return value
    if isinstance(value, str):
        return parse_speculative_config(value)
    if isinstance(value, Mapping):
        return speculative_settings_from(value) if value else None
    raise SettingError(f"speculative_config must be a mapping, JSON text or None, got {value!r}")
