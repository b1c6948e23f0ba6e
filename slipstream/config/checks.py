"""Refuses settings that cannot work with any model, naming the flag, its value and the nearest value that works."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.config.draft_schedule import check_draft_schedule
from slipstream.config.settings import (
    AUTO_COSTS,
    AUTO_METHOD,
    BLOCK_DRAFTERS,
    CHAINABLE,
    COMPOSITIONS,
    COUPLED,
    DRAFT_BUDGETS,
    DRAFT_SAMPLE_METHODS,
    DTYPES,
    EMBEDDED_MODEL,
    MAX_LOOKUP_LENGTH,
    MAX_SPECULATIVE_TOKENS,
    MODEL_DRAFTERS,
    NO_COST_TABLE,
    PROFILE_COSTS,
    QUANTIZATIONS,
    REJECTION_SAMPLE_METHODS,
    SPECULATIVE_METHODS,
    STANDARD_REJECTION,
    VERIFICATIONS,
    SettingError,
    Settings,
    SpeculativeSettings,
)
from slipstream.request import MAX_WHOLE_NUMBER, shown

_SCHEDULE = "num_speculative_tokens_per_batch_size"


def parse_speculative_config(text: str) -> SpeculativeSettings | None:
    """Read `--speculative-config`; `{}` or `none` switches speculation off, `auto` takes what ships for the target."""
    if text.strip() in ("", "none", "null", "{}"):
        return None
    if text.strip() == AUTO_METHOD:
        return SpeculativeSettings(method=AUTO_METHOD)
    try:
        value = json.loads(text)
    except RecursionError:
        raise SettingError("--speculative-config is JSON nested too deeply; one object is enough") from None
    except ValueError as error:  # broken JSON, or a whole number of thousands of digits
        raise SettingError(
            f"--speculative-config is not JSON ({error}); "
            'write for example \'{"method": "ngram", "num_speculative_tokens": 5}\', auto, or none'
        ) from None
    if not isinstance(value, dict):
        raise SettingError(f"--speculative-config must be a JSON object, got {shown(value)}")
    return speculative_settings_from(value)


def speculative_settings_from(value: Mapping[str, Any]) -> SpeculativeSettings:
    """Check a speculative config given as a mapping; unknown keys are refused by name."""
    known = {f.name: f for f in dataclasses.fields(SpeculativeSettings)}
    unknown = [key for key in value if key not in known]
    if unknown:
        raise SettingError(
            f"--speculative-config: unknown key {shown(unknown[0])}; known keys are {', '.join(sorted(known))}"
        )
    _check_method(value.get("method"))
    if value.get("num_speculative_tokens", 1) is None:
        raise SettingError("--speculative-config: num_speculative_tokens is None; leave it out for the default")
    settings = SpeculativeSettings(**value)
    if isinstance(settings.drafters, list):
        settings = dataclasses.replace(settings, drafters=tuple(settings.drafters))
    check_types(settings, lambda name: f"--speculative-config: {name}")
    if _SCHEDULE in value:
        schedule = check_draft_schedule(value[_SCHEDULE], settings.num_drafts)
        settings = dataclasses.replace(settings, num_speculative_tokens_per_batch_size=schedule)
    return settings


def _check_method(method: object) -> None:
    if method not in SPECULATIVE_METHODS:
        raise SettingError(
            f"--speculative-config: method {shown(method)} is not available; "
            f"choose one of {', '.join(SPECULATIVE_METHODS)}"
        )


# More only slow each other down, and very many end the process.
MAX_THREADS = 1024
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "None"}


def check_types(settings: Any, flag_of: Callable[[str], str]) -> None:
    """Refuse values of another type than the fields of a settings dataclass declare, and numbers that are not finite.

    Args:
        flag_of: what the error calls a field.
    """
    for name, hint in typing.get_type_hints(type(settings)).items():
        if typing.get_origin(hint) is tuple:
            continue  # lists have checks of their own
        value, kinds = getattr(settings, name), typing.get_args(hint) or (hint,)
        fits = isinstance(value, kinds) or (isinstance(value, int) and float in kinds)
        if not fits or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_KINDS[kind] for kind in kinds)
            raise SettingError(f"{flag_of(name)} must be {wanted}, got {shown(value)}")
        if isinstance(value, int) and abs(value) > MAX_WHOLE_NUMBER:
            raise SettingError(f"{flag_of(name)} is no 64-bit number: {shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingError(f"{flag_of(name)} must be a finite number, got {value}")


def check_settings(settings: Settings) -> None:
    """Refuse values that are wrong for any model; needs no file to be opened."""
    model, cache, scheduler = settings.model, settings.cache, settings.scheduler
    for part in (model, cache, scheduler):
        check_types(part, lambda name: f"--{name.replace('_', '-')}")
    if not model.model.strip():
        raise SettingError(f"--model is empty; give a .gguf file, a Hugging Face directory, or {EMBEDDED_MODEL}")
    if model.served_model_name is not None and not model.served_model_name.strip():
        raise SettingError("--served-model-name is empty; leave it out for the model's own name")
    if model.dtype not in DTYPES:
        raise SettingError(f"--dtype {model.dtype} is not known; choose one of {', '.join(DTYPES)}")
    if model.quantization not in QUANTIZATIONS:
        raise SettingError(
            f"--quantization {model.quantization} is not known; choose one of {', '.join(QUANTIZATIONS)}"
        )
    if scheduler.draft_budget not in DRAFT_BUDGETS:
        raise SettingError(
            f"--draft-budget {scheduler.draft_budget} is not known; choose one of {', '.join(DRAFT_BUDGETS)}"
        )
    for name, value, known in (
        ("composition", scheduler.composition, COMPOSITIONS),
        ("verification", scheduler.verification, VERIFICATIONS),
    ):
        if value not in known:
            raise SettingError(f"--{name} {value} is not known; choose one of {', '.join(known)}")
    for name, limit in (
        ("max-prompt-wait-s", scheduler.max_prompt_wait_s),
        ("profile-seconds", scheduler.profile_seconds),
        ("max-tpot-ms", scheduler.max_tpot_ms),
    ):
        if limit is not None and not limit > 0:
            raise SettingError(f"--{name} must be above 0, got {limit}")
    if not scheduler.cost_table.strip():
        raise SettingError(
            f"--cost-table is empty; give a file, {AUTO_COSTS!r} or {PROFILE_COSTS!r} to measure one, "
            f"or {NO_COST_TABLE!r}"
        )
    _at_least("--max-model-len", model.max_model_len, 2)
    _at_least("--num-threads", model.num_threads, 1)
    if model.num_threads is not None and model.num_threads > MAX_THREADS:
        raise SettingError(
            f"--num-threads must be at most {MAX_THREADS}, got {model.num_threads}; "
            "more threads than cores only slow it down"
        )
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
    check_types(speculative, lambda name: f"{flag}: {name}")
    _check_method(speculative.method)
    most = speculative.num_drafts
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
    if speculative.prompt_lookup_max > MAX_LOOKUP_LENGTH:
        raise SettingError(
            f"{flag}: prompt_lookup_max must be at most {MAX_LOOKUP_LENGTH}, got "
            f"{speculative.prompt_lookup_max}; the nearest is {MAX_LOOKUP_LENGTH}"
        )
    if speculative.num_speculative_tokens_per_batch_size:
        check_draft_schedule(speculative.num_speculative_tokens_per_batch_size, most)
    _at_least(f"{flag}: draft_max_model_len", speculative.draft_max_model_len, 2)
    _check_drafter_model(speculative)
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


def _check_drafter_model(speculative: SpeculativeSettings) -> None:
    flag, method = "--speculative-config", speculative.method
    _check_judging(speculative)
    _check_chain(speculative)
    methods = {method, *speculative.drafters}
    if not methods.isdisjoint(MODEL_DRAFTERS):
        may_be_open = not methods.isdisjoint(BLOCK_DRAFTERS)  # then it is the one that ships for the target
        if not may_be_open if speculative.model is None else not speculative.model.strip():
            raise SettingError(f"{flag}: method {method!r} needs a model, the drafter's")
        return
    if speculative.model is not None:
        raise SettingError(f"{flag}: model belongs to the methods {', '.join(MODEL_DRAFTERS)}; {method!r} has no model")


def _check_judging(speculative: SpeculativeSettings) -> None:
    """How drafts are judged, and how they are chosen: they must fit together."""
    flag = "--speculative-config"
    rule, choice = speculative.rejection_sample_method, speculative.chosen_draft_sample_method
    for name, value, known in (
        ("rejection_sample_method", rule, REJECTION_SAMPLE_METHODS),
        ("draft_sample_method", choice, DRAFT_SAMPLE_METHODS),
    ):
        if value not in known:
            raise SettingError(f"{flag}: {name} {shown(value)} is not known; choose one of {', '.join(known)}")
    if (rule, choice) == (STANDARD_REJECTION, "coupled"):
        raise SettingError(
            f"{flag}: draft_sample_method 'coupled' draws drafts with the target's own noise, but "
            "rejection_sample_method 'standard' takes drafts whose noise no later draw repeats; write "
            '"draft_sample_method": "probabilistic", or leave it out'
        )
    if (rule, choice) == (COUPLED, "probabilistic"):
        raise SettingError(
            f"{flag}: draft_sample_method 'probabilistic' draws drafts with noise of their own, which seldom equal the "
            "target's own sample, and rejection_sample_method 'coupled' accepts nothing else; write "
            '"rejection_sample_method": "standard", or leave draft_sample_method out'
        )


def _check_chain(speculative: SpeculativeSettings) -> None:
    flag, names = "--speculative-config", speculative.drafters
    if speculative.method != "chain":
        if names:
            raise SettingError(f"{flag}: drafters belongs to the method 'chain', not to {speculative.method!r}")
        return
    example = '"drafters": ["ngram", "dspark"]'
    if not isinstance(names, tuple) or len(names) < 2 or any(name not in CHAINABLE for name in names):
        raise SettingError(
            f"{flag}: drafters must list two or more of {', '.join(CHAINABLE)}, got {shown(names)}; write {example}"
        )
    if len(set(names)) != len(names) or not set(MODEL_DRAFTERS).isdisjoint(names[:-1]):
        raise SettingError(
            f"{flag}: drafters {shown(names)} cannot work: each may stand once, and whatever follows a model is never "
            f"asked; write {example}"
        )


def _at_least(flag: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise SettingError(f"{flag} must be at least {least}, got {value}")
