"""The first line of a recording: read, and checked to be what a scheduler can be built from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from slipstream.config import (
    COMPOSITIONS,
    DEVICE_DEFAULTS,
    DRAFT_BUDGETS,
    MAX_SPECULATIVE_TOKENS,
    REJECTION_SAMPLE_METHODS,
    VERIFICATIONS,
    CacheSettings,
    ModelFacts,
    ModelSettings,
    SchedulerConfig,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
    shown,
)
from slipstream.scheduler.cost_table_json import cost_table_from_json
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.simulation.pool_size import MAX_KV_BLOCKS
from slipstream.simulation.recording import FORMAT, NEW_COLUMNS, REQUEST_COLUMNS, RESULT_COLUMNS, Header
from slipstream.simulation.typed import built

_T = TypeVar("_T")

_LEAST_ONE = ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_kv_blocks")
_MOST = {"num_kv_blocks": MAX_KV_BLOCKS, "num_speculative_tokens": MAX_SPECULATIVE_TOKENS}
_CHOICES = {
    "draft_budget": DRAFT_BUDGETS,
    "layout_name": tuple(LAYOUTS),
    "composition": COMPOSITIONS,
    "verification": VERIFICATIONS,
    "rejection_sample_method": REJECTION_SAMPLE_METHODS,
}


def header_from_json(path: Path, value: Any) -> Header:
    """Raises SettingError for what is no header, or one that this release cannot use."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise SettingError(
            f'{path} is not a recording: its first line should have "format": "{FORMAT}", not {shown(found)}'
        )
    try:
        columns = value["columns"]
        for name, known in (("request", REQUEST_COLUMNS), ("new", NEW_COLUMNS), ("result", RESULT_COLUMNS)):
            if tuple(columns[name]) != known:
                raise TypeError(f"columns of {name} differ")
        settings, facts, costs = value["settings"], value["facts"], value["costs"]
        return Header(
            version=_of(str, value, "version"),
            date=_of(str, value, "date"),
            model=_of(str, value, "model"),
            config=checked_config(built(SchedulerConfig, value["config"], "config")),
            costs=None if costs is None else cost_table_from_json(costs),
            settings=None if settings is None else _settings(settings),
            facts=None if facts is None else _facts(facts),
            has_text=_of(bool, value, "has_text"),
        )
    except SettingError as error:
        raise SettingError(f"{path}: line 1: {error}") from None
    except KeyError as error:
        raise SettingError(f"{path}: line 1 has no {error}") from None
    except (TypeError, AttributeError) as error:
        version = shown(value.get("version", "an unknown version"))
        raise SettingError(f"{path} was recorded by {version} with settings this release does not know: {error}") from (
            None
        )


def checked_config(config: SchedulerConfig) -> SchedulerConfig:
    """The same. Raises SettingError for numbers that no scheduler works with."""
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                raise SettingError(f"{name} is {shown(value)}; known are {', '.join(_CHOICES[name])}")
        elif isinstance(value, int | float):
            low, high = int(name in _LEAST_ONE), _MOST.get(name, math.inf)
            if not low <= value <= high:
                raise SettingError(f"{name} must be from {low} to {high}, got {shown(value)}")
    for name in ("priority_ageing_s", "max_tpot_ms"):
        if getattr(config, name) == 0:
            raise SettingError(f"{name} must be above 0, got 0")
    return config


def _of(kind: type[_T], value: Mapping[str, Any], key: str) -> _T:
    found = value[key]
    if not isinstance(found, kind):
        raise TypeError(f"{key} is {shown(found)}")
    return found


def _facts(value: object) -> ModelFacts:
    facts = built(ModelFacts, value, "facts")
    if facts.device_type not in DEVICE_DEFAULTS:
        raise TypeError(f"facts.device_type is {shown(facts.device_type)}")
    for name in ("max_position", "kv_bytes_per_token", "memory_bytes"):
        if getattr(facts, name) < 1:
            raise TypeError(f"facts.{name} is {getattr(facts, name)}")
    return facts


def _settings(value: Mapping[str, Any]) -> Settings:
    speculative = value["speculative"]
    return Settings(
        model=built(ModelSettings, value["model"], "settings.model"),
        cache=built(CacheSettings, value["cache"], "settings.cache"),
        scheduler=built(SchedulerSettings, value["scheduler"], "settings.scheduler"),
        speculative=None if speculative is None else built(SpeculativeSettings, speculative, "settings.speculative"),
    )
