"""Settings: what is refused before weights load, and how open values are decided."""

from __future__ import annotations

import json

import pytest

from slipstream.config import (
    CacheSettings,
    ModelFacts,
    ModelSettings,
    Resolution,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
    parse_speculative_config,
    resolve_settings,
)
from slipstream.scheduler.layouts import layout_for

FACTS = ModelFacts(max_position=8192, kv_bytes_per_token=23040, memory_bytes=8 << 30)


def resolve(settings: Settings, facts: ModelFacts = FACTS) -> Resolution:
    return resolve_settings(settings, facts, layout_for(settings.speculative))


def forced(k: int = 5, layout: str = "dspark", length: float | None = 4.72) -> SpeculativeSettings:
    return SpeculativeSettings(method="forced", layout=layout, num_speculative_tokens=k, acceptance_length=length)


def test_defaults_resolve_and_the_report_says_so() -> None:
    resolution = resolve(Settings())
    config = resolution.scheduler
    assert (config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len) == (256, 64, 8192)
    assert config.min_prefill_tokens == 32
    assert config.num_kv_blocks * config.block_size * FACTS.kv_bytes_per_token <= FACTS.memory_bytes * 0.25
    rows = {row["name"]: row for row in resolution.as_dict()}
    assert rows["max_num_seqs"]["source"] == "default"
    assert rows["num_kv_blocks"]["reason"]
    json.dumps(resolution.as_dict())


def test_user_values_are_kept_and_named_as_such() -> None:
    resolution = resolve(Settings(scheduler=SchedulerSettings(max_num_batched_tokens=64, max_num_seqs=8)))
    rows = {row.name: row for row in resolution.report}
    assert (rows["max_num_batched_tokens"].value, rows["max_num_batched_tokens"].source) == (64, "user")
    assert resolution.settings.scheduler.min_prefill_tokens == 8


@pytest.mark.parametrize(
    ("speculative", "rule", "choice", "words"),
    [
        ({"method": "dspark", "model": "x"}, "coupled", "coupled", "does not depend on speculation"),
        (
            {"method": "dspark", "model": "x", "rejection_sample_method": "standard"},
            "standard",
            "probabilistic",
            "equal in law",
        ),
        (
            {
                "method": "draft_model",
                "model": "x",
                "rejection_sample_method": "standard",
                "draft_sample_method": "greedy",
            },
            "standard",
            "greedy",
            "give the same texts",
        ),
        ({"method": "ngram", "rejection_sample_method": "standard"}, "standard", None, "give the same texts"),
    ],
)
def test_the_report_names_the_rule_that_judges_drafts(
    speculative: dict[str, str], rule: str, choice: str | None, words: str
) -> None:
    resolution = resolve(Settings(speculative=parse_speculative_config(json.dumps(speculative))))
    rows = {row.name: row for row in resolution.report}
    row = rows["rejection_sample_method"]
    assert (row.value, row.source) == (rule, "user" if "rejection_sample_method" in speculative else "default")
    assert words in row.reason
    assert (rows["draft_sample_method"].value if choice else None) == choice
    assert ("draft_sample_method" in rows) == (choice is not None)
    assert resolution.scheduler.rejection_sample_method == rule


@pytest.mark.parametrize(
    ("layout", "capacity"), [("dspark", 8 * 5), ("dflash", 8 * 6), ("draft_model", 64 + 8), ("pard", 64 + 8 * 5)]
)
def test_draft_capacity_follows_the_layout(layout: str, capacity: int) -> None:
    settings = Settings(
        scheduler=SchedulerSettings(max_num_batched_tokens=64, max_num_seqs=8), speculative=forced(layout=layout)
    )
    assert resolve(settings).scheduler.draft_capacity == capacity


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            SchedulerSettings(max_num_batched_tokens=4, max_num_seqs=8),
            ["--max-num-batched-tokens 4", "--max-num-seqs 8"],
        ),
        (SchedulerSettings(max_num_seqs=0), ["--max-num-seqs", "at least 1", "got 0"]),
        (SchedulerSettings(draft_budget="none"), ["--draft-budget none", "separate, shared"]),
        (SchedulerSettings(commit_lag=2), ["--commit-lag", "0 or 1", "2"]),
        (SchedulerSettings(max_num_batched_tokens=64, min_prefill_tokens=65), ["--min-prefill-tokens 65", "64"]),
        (SchedulerSettings(priority_ageing_s=0.0), ["--priority-ageing-s"]),
        (SchedulerSettings(draft_capacity=4), ["--draft-capacity 4", "dspark", "at least 5"]),
    ],
)
def test_scheduler_settings_that_cannot_work(settings: SchedulerSettings, words: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        resolve(Settings(scheduler=settings, speculative=forced()))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(model=ModelSettings(dtype="int3")), ["--dtype int3", "bfloat16"]),
        (Settings(model=ModelSettings(max_model_len=9000)), ["--max-model-len 9000", "8192"]),
        (Settings(model=ModelSettings(max_model_len=1)), ["--max-model-len", "at least 2"]),
        (Settings(cache=CacheSettings(block_size=0)), ["--block-size", "nearest is 1"]),
        (Settings(cache=CacheSettings(num_kv_blocks=0)), ["--num-kv-blocks", "at least 1"]),
        (Settings(cache=CacheSettings(kv_cache_memory_bytes=100)), ["--kv-cache-memory-bytes 100", "368640"]),
        (Settings(speculative=forced(k=0)), ["num_speculative_tokens", "nearest is 1"]),
        (Settings(speculative=forced(length=7.0)), ["acceptance_length", "got 7.0", "nearest is 6"]),
        (Settings(speculative=forced(length=None)), ["acceptance_length", "got None"]),
        (Settings(speculative=SpeculativeSettings(method="ngram", layout="dspark")), ["layout", "forced"]),
        (
            Settings(speculative=SpeculativeSettings(method="ngram", prompt_lookup_min=5)),
            ["prompt_lookup_min", "got 5"],
        ),
        (
            Settings(speculative=SpeculativeSettings(method="ngram", prompt_lookup_max=33)),
            ["prompt_lookup_max", "got 33", "nearest is 32"],
        ),
        (Settings(model=ModelSettings(model="")), ["--model is empty"]),
        (Settings(model=ModelSettings(served_model_name="")), ["--served-model-name is empty"]),
        (Settings(model=ModelSettings(num_threads=100_000)), ["--num-threads", "at most", "got 100000"]),
        (Settings(model=ModelSettings(num_threads=10**26)), ["--num-threads", str(10**26)]),
        (Settings(cache=CacheSettings(num_kv_blocks=10**5000)), ["--num-kv-blocks", "64-bit"]),
        (Settings(cache=CacheSettings(num_kv_blocks=23_302)), ["--num-kv-blocks 23302", "8192 MiB", "has 23301"]),
        (
            Settings(cache=CacheSettings(kv_cache_memory_bytes=9 << 30)),
            [f"--kv-cache-memory-bytes {9 << 30}", f"{8 << 30} bytes"],
        ),
    ],
)
def test_other_settings_that_cannot_work(settings: Settings, words: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        resolve(settings)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(model=ModelSettings(num_threads="2")), "--num-threads"),  # type: ignore[arg-type]
        (Settings(model=ModelSettings(num_threads=2.0)), "--num-threads"),  # type: ignore[arg-type]
        (Settings(model=ModelSettings(model=5)), "--model"),  # type: ignore[arg-type]
        (Settings(model=ModelSettings(batch_invariant=1)), "--batch-invariant"),  # type: ignore[arg-type]
        (Settings(cache=CacheSettings(block_size=None)), "--block-size"),  # type: ignore[arg-type]
        (Settings(cache=CacheSettings(num_kv_blocks=True)), "--num-kv-blocks"),
        (Settings(scheduler=SchedulerSettings(commit_lag=None)), "--commit-lag"),  # type: ignore[arg-type]
        (Settings(scheduler=SchedulerSettings(priority_ageing_s=float("nan"))), "--priority-ageing-s"),
        (Settings(scheduler=SchedulerSettings(priority_ageing_s=float("inf"))), "--priority-ageing-s"),
        (Settings(speculative=SpeculativeSettings(method="ngram", prompt_lookup_min=2.5)), "prompt_lookup_min"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_settings_of_the_wrong_type_are_refused_by_name(settings: Settings, name: str) -> None:
    with pytest.raises(SettingError, match=name):
        resolve(settings)


def test_the_largest_pool_that_is_named_works() -> None:
    assert resolve(Settings(cache=CacheSettings(num_kv_blocks=23_301))).scheduler.num_kv_blocks == 23_301
    assert resolve(Settings(cache=CacheSettings(kv_cache_memory_bytes=8 << 30))).scheduler.num_kv_blocks <= 23_301


def test_more_memory_than_there_is_may_be_allowed_when_less_is_used() -> None:
    settings = Settings(
        model=ModelSettings(max_model_len=160),
        scheduler=SchedulerSettings(max_num_seqs=2),
        cache=CacheSettings(kv_cache_memory_bytes=9 << 30),
    )
    assert resolve(settings).scheduler.num_kv_blocks == 20


def test_a_small_pool_is_reported_and_not_refused() -> None:
    resolution = resolve(Settings(cache=CacheSettings(num_kv_blocks=20)))
    row = next(row for row in resolution.report if row.name == "max_request_tokens")
    assert row.value == 320


def test_speculative_config_as_json() -> None:
    settings = parse_speculative_config('{"method": "ngram", "num_speculative_tokens": 3}')
    assert settings is not None
    assert (settings.method, settings.num_speculative_tokens) == ("ngram", 3)
    assert parse_speculative_config("none") is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ('{"method": "magic"}', "magic"),
        ('{"method": "ngram", "k": 3}', "'k'"),
        ('{"method": "ngram", "num_speculative_tokens": "three"}', "three"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "True"),
        ('{"method": "forced", "layout": 3}', "layout"),
        ('{"method": "ngram", "num_speculative_tokens": null}', "None"),
        ('{"method": "ngram", "prompt_lookup_min": null}', "prompt_lookup_min"),
        ('{"method": "ngram", "prompt_lookup_max": null}', "prompt_lookup_max"),
        ('{"method": "ngram", "num_speculative_tokens": ' + "9" * 5000 + "}", "not JSON"),
        ('{"method": "ngram", "num_speculative_tokens": ' + "9" * 400 + "}", "64-bit"),
        ("[" * 100_000, "nested too deeply"),
        ('{"method": {"a": 1}}', "not available"),
        ('{"method": "forced", "acceptance_length": Infinity}', "finite"),
        ('{"method": "forced", "acceptance_length": "x"}', "acceptance_length"),
    ],
)
def test_speculative_config_that_is_wrong(text: str, word: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_speculative_config(text)
    assert word in str(caught.value)
