"""Refuses settings that cannot work with any model, naming the flag, its value and the nearest value that works."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from slipstream.config.settings import (
    DRAFT_BUDGETS,
    DTYPES,
    MAX_SPECULATIVE_TOKENS,
    SPECULATIVE_METHODS,
    SettingError,
    Settings,
    SpeculativeSettings,
)


def parse_speculative_config(text: str) -> SpeculativeSettings | None:
    """Read `--speculative-config`; `{}` or `none` switches speculation off."""
    if text.strip() in ("", "none", "null", "{}"):
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise SettingError(
            f"--speculative-config is not JSON ({error}); "
            'write for example \'{"method": "ngram", "num_speculative_tokens": 5}\', or none'
        ) from None
    if not isinstance(value, dict):
        raise SettingError(f"--speculative-config must be a JSON object, got {value!r}")
    return speculative_settings_from(value)


def speculative_settings_from(value: Mapping[str, Any]) -> SpeculativeSettings:
    """Check a speculative config given as a mapping; unknown keys are refused by name."""
    known = {f.name: f for f in dataclasses.fields(SpeculativeSettings)}
    unknown = [key for key in value if key not in known]
    if unknown:
        raise SettingError(
            f"--speculative-config: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(known))}"
        )
    _check_method(value.get("method"))
    for name in ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "draft_max_model_len"):
        number = value.get(name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise SettingError(f"--speculative-config: {name} must be a whole number, got {number!r}")
    length = value.get("acceptance_length")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | float)):
        raise SettingError(f"--speculative-config: acceptance_length must be a number, got {length!r}")
    layout = value.get("layout")
    if layout is not None and not isinstance(layout, str):
        raise SettingError(f"--speculative-config: layout must be a string, got {layout!r}")
    return SpeculativeSettings(**value)


def _check_method(method: object) -> None:
    if method not in SPECULATIVE_METHODS:
        raise SettingError(
            f"--speculative-config: method {method!r} is not available; choose one of {', '.join(SPECULATIVE_METHODS)}"
        )


def check_settings(settings: Settings) -> None:
    """Refuse values that are wrong for any model; needs no file to be opened."""
    model, cache, scheduler = settings.model, settings.cache, settings.scheduler
    if model.dtype not in DTYPES:
        raise SettingError(f"--dtype {model.dtype} is not known; choose one of {', '.join(DTYPES)}")
    if scheduler.draft_budget not in DRAFT_BUDGETS:
        raise SettingError(
            f"--draft-budget {scheduler.draft_budget} is not known; choose one of {', '.join(DRAFT_BUDGETS)}"
        )
    _at_least("--max-model-len", model.max_model_len, 2)
    _at_least("--num-threads", model.num_threads, 1)
    _at_least("--num-kv-blocks", cache.num_kv_blocks, 1)
    _at_least("--kv-cache-memory-bytes", cache.kv_cache_memory_bytes, 1)
    _at_least("--max-num-batched-tokens", scheduler.max_num_batched_tokens, 1)
    _at_least("--max-num-seqs", scheduler.max_num_seqs, 1)
    _at_least("--draft-capacity", scheduler.draft_capacity, 1)
    _at_least("--min-prefill-tokens", scheduler.min_prefill_tokens, 0)
    _at_least("--long-prefill-token-threshold", scheduler.long_prefill_token_threshold, 0)
    if not 1 <= cache.block_size <= 1024:
        nearest = 1 if cache.block_size < 1 else 1024
        raise SettingError(f"--block-size must be between 1 and 1024, got {cache.block_size}; the nearest is {nearest}")
    if scheduler.commit_lag not in (0, 1):
        raise SettingError(f"--commit-lag must be 0 or 1, got {scheduler.commit_lag}")
    if not scheduler.priority_ageing_s > 0:
        raise SettingError(f"--priority-ageing-s must be above 0, got {scheduler.priority_ageing_s}; the default is 30")
    if settings.speculative is not None:
        check_speculative(settings.speculative)


def check_speculative(speculative: SpeculativeSettings) -> None:
    """Refuse a speculative config that cannot work with any model."""
    flag = "--speculative-config"
    _check_method(speculative.method)
    most = speculative.num_speculative_tokens
    if not 1 <= most <= MAX_SPECULATIVE_TOKENS:
        nearest = min(max(most, 1), MAX_SPECULATIVE_TOKENS)
        raise SettingError(
            f"{flag}: num_speculative_tokens must be between 1 and {MAX_SPECULATIVE_TOKENS}, got {most}; "
            f"the nearest is {nearest} (to switch speculation off use {flag} none)"
        )
    if not 1 <= speculative.prompt_lookup_min <= speculative.prompt_lookup_max:
        raise SettingError(
            f"{flag}: prompt_lookup_min must be between 1 and prompt_lookup_max ({speculative.prompt_lookup_max}), "
            f"got {speculative.prompt_lookup_min}"
        )
    _at_least(f"{flag}: draft_max_model_len", speculative.draft_max_model_len, 2)
    if speculative.method != "forced":
        for name in ("layout", "acceptance_length"):
            if getattr(speculative, name) is not None:
                raise SettingError(f"{flag}: {name} belongs to the method 'forced', not to {speculative.method!r}")
        return
    length = speculative.acceptance_length
    if length is None or not 1.0 <= length <= most + 1:
        nearest_length = 1.0 if length is None or not length > most + 1 else float(most + 1)
        raise SettingError(
            f"{flag}: method 'forced' needs an acceptance_length between 1 and num_speculative_tokens + 1 = "
            f"{most + 1}, got {length}; the nearest is {nearest_length:g}"
        )


def _at_least(flag: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise SettingError(f"{flag} must be at least {least}, got {value}")
