"""Costs are measured once, kept for starts that are alike, and measured again where they cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from models.tiny_models import write_tiny_hf_model

from slipstream.config import AUTO_COSTS, SchedulerConfig, SpeculativeSettings
from slipstream.engine import build
from slipstream.engine.build import build_engine
from slipstream.engine.cost_tables import StartingCosts
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.kept_costs import keep_costs, kept_costs_path, read_kept_costs
from slipstream.scheduler.cost_table import Provenance
from slipstream.simulation.machines import machine_named

TABLE = machine_named("roofline:cpu:smollm2-135m:tp1")
HERE = Provenance(machine="a CPU, 2 of 2 threads", model="tiny, int8, avx2")
CONFIG = SchedulerConfig(
    max_num_batched_tokens=256, max_num_seqs=8, max_model_len=512, block_size=16, num_kv_blocks=100
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_kept_table_comes_back() -> None:
    path = kept_costs_path(HERE, CONFIG, None)
    assert read_kept_costs(path) is None
    keep_costs(TABLE, path)
    assert read_kept_costs(path) == TABLE


def test_whatever_changes_costs_has_a_table_of_its_own() -> None:
    speculative = SpeculativeSettings(method="ngram")
    paths = {
        kept_costs_path(HERE, CONFIG, None),
        kept_costs_path(replace(HERE, machine="a CPU, 1 of 2 threads"), CONFIG, None),
        kept_costs_path(replace(HERE, model="tiny, float32"), CONFIG, None),
        kept_costs_path(HERE, replace(CONFIG, max_num_seqs=9), None),
        kept_costs_path(HERE, CONFIG, speculative),
        kept_costs_path(HERE, CONFIG, replace(speculative, num_speculative_tokens=3)),
    }
    assert len(paths) == 6
    assert kept_costs_path(replace(HERE, date="later"), replace(CONFIG, num_kv_blocks=7), None) in paths


def test_a_broken_file_is_measured_again(caplog: pytest.LogCaptureFixture) -> None:
    path = kept_costs_path(HERE, CONFIG, None)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert read_kept_costs(path) is None
    assert "measuring again" in caplog.text


def test_a_cache_that_cannot_be_written_is_said_and_no_more(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("a file where a folder should be")
    keep_costs(TABLE, kept_costs_path(HERE, CONFIG, None))
    assert "not kept" in caplog.text


def test_the_second_start_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = str(write_tiny_hf_model(tmp_path / "llama"))
    measured: list[float] = []

    def measure(executor, config, here, seconds, on_progress=None) -> StartingCosts:
        measured.append(seconds)
        return StartingCosts(TABLE, "measured now", "derived")

    monkeypatch.setattr(build, "measured_costs", measure)
    flat = {"model": model, "device": "cpu", "num_threads": 1, "max_num_seqs": 2, "num_kv_blocks": 32}
    reasons = []
    for settings in (flat, flat, {**flat, "max_num_seqs": 3}):
        built = build_engine(settings_from_flat({**settings, "cost_table": AUTO_COSTS, "speculative_config": None}))
        reasons += [row.reason for row in built.resolution.report if row.name == "cost_table"]
        built.engine.close()
    assert len(measured) == 2
    assert [reason.split(",")[0] for reason in reasons][::2] == ["measured now", "measured now"]
    assert "kept in" in reasons[1]
