"""Scenario files: what they say is what runs, and what they get wrong is named with the nearest thing that works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.config import SettingError
from slipstream.lab.scenario import Scenario
from slipstream.lab.scenario_file import load_scenario, scenario_from
from slipstream.lab.scenario_run import run
from slipstream.scheduler.costs import DecodeGraphs, StepShape
from slipstream.simulation.acceptance import conditional_acceptance

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))


def values(**changes: Any) -> dict[str, Any]:
    """A small scenario as TOML gives it; `changes` replace tables."""
    return {
        "machine": {"name": "gb300-v4.1-flash"},
        "scheduler": {"max_num_batched_tokens": 64, "max_num_seqs": 8, "num_speculative_tokens": 3},
        "acceptance": {"mean": 2.5},
        "workload": [{"name": "w", "prompt_tokens": 20, "output_tokens": 30, "num_requests": 12}],
        **changes,
    }


def scenario(tmp_path: Path = Path(), **changes: Any) -> Scenario:
    return scenario_from(values(**changes), "small", tmp_path)


def lengths(key: str, value: Any, count: int = 4000) -> list[int]:
    workload = {"prompt_tokens": 20, "output_tokens": 30, "num_requests": count, key: value}
    requests = scenario(workload=[workload], scheduler={}).workloads[0].requests
    return [r.num_prompt_tokens if key == "prompt_tokens" else r.num_output_tokens for r in requests]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_shipped_scenario_loads(path: Path) -> None:
    loaded = load_scenario(path)
    assert loaded.assumptions
    assert len(loaded.variants) > 1
    assert loaded.title != path.stem


def test_settings_reach_the_scheduler() -> None:
    loaded = scenario(
        scheduler={
            "max_num_batched_tokens": 64,
            "max_num_seqs": 8,
            "layout": "eagle3",
            "num_speculative_tokens": 2,
            "draft_capacity": 99,
            "composition": "burst",
            "verification": "fixed",
            "max_tpot_ms": 40,
            "block_size": 32,
            "num_kv_blocks": 77,
            "max_model_len": 512,
        },
        variant=[{"name": "a"}, {"name": "b", "max_num_seqs": 4, "num_speculative_tokens": 0}],
    )
    workload, (first, second) = loaded.workloads[0], loaded.variants
    config = loaded.config_of(workload, first)
    assert (config.layout_name, config.num_speculative_tokens, config.draft_capacity) == ("eagle3", 2, 99)
    assert (config.composition, config.verification, config.max_tpot_ms) == ("burst", "fixed", 40)
    assert (config.block_size, config.num_kv_blocks, config.max_model_len) == (32, 77, 512)
    assert config.min_prefill_tokens == 8
    other = loaded.config_of(workload, second)
    assert (other.max_num_seqs, other.num_speculative_tokens) == (4, 0)


def test_machine_overrides_and_fitted_values() -> None:
    published = {"source": "somewhere", "a": {"tpot_ms": 10}}
    fit = {"variant": "a", "parameter": "mixed_ms", "figures": ["tpot_ms"], "low": 1, "high": 99, "values": {"w": 55}}
    loaded = scenario(
        machine={"name": "gb300-v4.1-flash", "mixed_ms": 80, "decode_graphs": "uniform"},
        variant=[{"name": "a"}, {"name": "b", "machine": {"piecewise_ms": 30}}],
        published=published,
        fit=fit,
    )
    mixed = StepShape(num_decodes=4, num_prompt_rows=10)
    first, second = (loaded.machine_of(loaded.workloads[0], variant) for variant in loaded.variants)
    assert first.decode_graphs is DecodeGraphs.UNIFORM
    assert first.target_ms(mixed) == pytest.approx(55)
    assert second.target_ms(mixed) == pytest.approx(30)
    assert scenario(machine={"name": "gb300-v4.1-flash", "mixed_ms": 80}).machine.build().target_ms(mixed) == 80


def test_a_mean_belongs_to_the_drafts_it_was_measured_with() -> None:
    """Another K must not change what a draft's chance is."""
    loaded = scenario()
    changed = loaded.with_settings(num_speculative_tokens=8)
    for one in (loaded, changed):
        assert one.acceptance.classes[0].chances == (conditional_acceptance(2.5, 3),)
    of_five = scenario(acceptance={"mean": 2.5, "num_drafts": 5})
    assert of_five.acceptance.classes[0].chances == (conditional_acceptance(2.5, 5),)


def test_chances_go_on_past_the_last_depth() -> None:
    loaded = scenario(acceptance={"survivals": [0.8, 0.4], "calibration_error": 0.0})
    fate = loaded.acceptance.build(4).request(0, 100)
    assert list(fate.confidences(0, 4) or ()) == pytest.approx([0.8, 0.5, 0.5, 0.5])


def test_length_distributions() -> None:
    assert set(lengths("prompt_tokens", 17)) == {17}
    uniform = lengths("prompt_tokens", {"distribution": "uniform", "low": 5, "high": 9})
    assert set(uniform) == {5, 6, 7, 8, 9}
    lognormal = lengths("output_tokens", {"distribution": "lognormal", "median": 100, "sigma": 0.5, "high": 200})
    assert np.median(lognormal) == pytest.approx(100, rel=0.05)
    assert max(lognormal) == 200
    exponential = lengths("output_tokens", {"distribution": "exponential", "mean": 50})
    assert np.mean(exponential) == pytest.approx(50, rel=0.05)
    assert min(exponential) >= 1
    assert set(lengths("output_tokens", {"distribution": "values", "values": [3, 40]})) == {3, 40}
    assert lengths("output_tokens", {"distribution": "exponential", "mean": 50}) == exponential


def test_a_trace_gives_lengths_and_times(tmp_path: Path) -> None:
    lines = [{"arrival_s": 0.5 * i, "prompt_tokens": 10 + i, "output_tokens": 20} for i in range(6)]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    workload = {"trace": "t.jsonl", "arrivals": "trace", "num_requests": 4}
    loaded = scenario(tmp_path, workload=[workload])
    assert [r.num_prompt_tokens for r in loaded.workloads[0].requests] == [10, 11, 12, 13]
    assert loaded.workloads[0].arrivals.times == [0.0, 0.5, 1.0, 1.5]
    result = run(loaded).cases[0].result
    assert result.completed == 4
    assert result.duration_s > 1.5


def test_extends_replaces_whole_tables(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(
        'title = "base"\n[machine]\nname = "gb300-v4.1-flash"\n[scheduler]\nmax_num_seqs = 8\n[acceptance]\nmean = 2\n'
        "[[workload]]\nprompt_tokens = 9\noutput_tokens = 9\nnum_requests = 3\n"
    )
    (tmp_path / "more.toml").write_text('extends = "base.toml"\n[scheduler]\nmax_num_batched_tokens = 99\n')
    loaded = load_scenario(tmp_path / "more.toml")
    assert loaded.title == "base"
    assert loaded.settings == {"max_num_batched_tokens": 99}
    (tmp_path / "loop.toml").write_text('extends = "loop.toml"\n')
    with pytest.raises(SettingError, match="extends itself"):
        load_scenario(tmp_path / "loop.toml")


def test_changes_over_the_file(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "scenarios" / "public-result.toml"
    loaded = load_scenario(path, ["max-num-seqs=32", "machine.mixed_ms=77.5", "composition=burst"])
    assert loaded.settings["max_num_seqs"] == 32
    assert loaded.settings["composition"] == "burst"
    assert loaded.machine.overrides["mixed_ms"] == 77.5
    with pytest.raises(SettingError, match="'before' sets draft_budget itself"):
        load_scenario(path, ["draft_budget=shared"])
    with pytest.raises(SettingError, match="KEY=VALUE"):
        load_scenario(path, ["max_num_seqs"])


def test_with_settings_and_only() -> None:
    loaded = scenario(variant=[{"name": "a", "max_num_seqs": 4}, {"name": "b", "machine": {"mixed_ms": 9}}])
    changed = loaded.with_settings(max_num_batched_tokens=32, verification="fixed")
    assert changed.config_of(changed.workloads[0], changed.variants[1]).max_num_batched_tokens == 32
    assert loaded.settings.get("verification") is None
    with pytest.raises(SettingError, match="set by the variant 'a'"):
        loaded.with_settings(max_num_seqs=2)
    only = loaded.only("b")
    assert [variant.name for variant in only.variants] == ["b"]
    assert only.machine.overrides == {"mixed_ms": 9}
    assert only.with_settings(max_num_seqs=2).config_of(only.workloads[0], only.variants[0]).max_num_seqs == 2
    with pytest.raises(SettingError, match="did you mean 'max_num_seqs'"):
        loaded.with_settings(max_num_seq=2)


WORKLOAD = {"prompt_tokens": 20, "output_tokens": 30, "num_requests": 12}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"scheduler": {"max_num_seq": 3}}, r"\[scheduler\]: key 'max_num_seq' is not known; did you mean 'max_num_seqs'"),
    ({"scheduler": {"commit_lag": 1}}, "commit_lag is not simulated"),
    ({"scheduler": {"max_num_seqs": 0}}, "max-num-seqs must be at least 1"),
    ({"scheduler": {"max_num_seqs": "8"}}, "max-num-seqs must be a whole number"),
    ({"scheduler": {"composition": "mixed"}}, "choose one of mix, burst, cost"),
    ({"scheduler": {"layout": "dsparc"}}, "choose one of .*dspark"),
    ({"scheduler": {"num_speculative_tokens": 99}}, "the nearest is 64"),
    ({"scheduler": {"num_kv_blocks": 2}}, "the nearest that works is 4"),
    ({"scheduler": {"max_model_len": 40}}, "longest request of 'w', 50 tokens"),
    ({"scheduler": {"cost_table": "profile"}}, "cost_table 'profile' measures an engine"),
    ({"scheduler": {"cost_table": "no.json"}}, "cost table no.json cannot be read"),
    ({"machine": {"name": "gb300-v41-flash"}}, "nearest is 'gb300-v4.1-flash'"),
    ({"machine": {}}, "needs name"),
    ({"machine": {"name": "gb300-v4.1-flash", "mixd_ms": 3}}, "did you mean 'mixed_ms'"),
    ({"machine": {"name": "gb300-v4.1-flash", "mixed_ms": 0}}, "mixed_ms must be above 0"),
    ({"machine": {"file": "none.json"}}, "cost table none.json cannot be read"),
    ({"acceptance": {}}, "needs one of mean, conditional, chances, survivals"),
    ({"acceptance": {"mean": 4.5}}, "the nearest is 4"),
    ({"acceptance": {"mean": 2, "chances": [0.5]}}, "got mean and chances"),
    ({"acceptance": {"conditional": 1.5}}, "between 0 and 1, got 1.5; the nearest is 1"),
    ({"acceptance": {"survivals": [0.5, 0.6]}}, "must fall"),
    ({"acceptance": {"mean": 2, "calibration_error": 0.9}}, "the nearest is"),
    ({"acceptance": {"class": [{"chances": [0.5]}]}}, "share is missing"),
    ({"workload": []}, r"no \[\[workload\]\]"),
    ({"workload": {"name": "w"}}, r"write workload as \[\[workload\]\]"),
    ({"workload": [{**WORKLOAD, "num_requests": 0}]}, "1 or more|between 1 and"),
    ({"workload": [{**WORKLOAD, "prompt_tokens": {"distribution": "normal"}}]}, "did you mean 'lognormal'"),
    ({"workload": [{**WORKLOAD, "prompt_tokens": {"distribution": "uniform", "low": 9, "high": 3}}]}, "nearest is 3"),
    ({"workload": [{**WORKLOAD, "arrivals": {"kind": "poisson"}}]}, "rate is missing"),
    ({"workload": [{**WORKLOAD, "arrivals": {"kind": "closed", "concurency": 3}}]}, "did you mean 'concurrency'"),
    ({"workload": [{**WORKLOAD, "arrivals": "trace"}]}, "needs trace = FILE"),
    ({"workload": [{"trace": "none.jsonl"}]}, "none.jsonl cannot be read"),
    ({"workload": [WORKLOAD, WORKLOAD]}, "two are named"),
    ({"variant": [{"name": "a"}, {"name": "a"}]}, "two are named 'a'"),
    ({"variant": [{"name": "a", "baseline": "c"}]}, "baseline 'c' is not known"),
    ({"published": {"source": "s", "b": {}}}, "key 'b' is not known"),
    ({"fit": {"variant": "x", "parameter": "mixed_ms", "figures": ["tpot_ms"], "low": 1, "high": 2}}, "'x' is not"),
    ({"acceptence": {}}, "did you mean 'acceptance'"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        scenario(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "line 1: no JSON"),
        ('{"prompt_tokens": 3}', "output_tokens is missing"),
        ('{"prompt_tokens": 3, "output_tokens": 0}', "the nearest is 1"),
        ("", "has no requests"),
        (
            '{"prompt_tokens": 3, "output_tokens": 2, "arrival_s": 1}\n{"prompt_tokens": 3, "output_tokens": 2}',
            "1 of 2",
        ),
        (
            '{"prompt_tokens": 3, "output_tokens": 2, "arrival_s": 1}\n'
            '{"prompt_tokens": 3, "output_tokens": 2, "arrival_s": 0}',
            "must not fall",
        ),
    ],
)
def test_broken_traces_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(SettingError, match=message):
        scenario(tmp_path, workload=[{"trace": "t.jsonl", "arrivals": "trace"}])


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be read"):
        load_scenario(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_text("a = = b")
    with pytest.raises(SettingError, match="is not TOML"):
        load_scenario(tmp_path / "x.toml")
