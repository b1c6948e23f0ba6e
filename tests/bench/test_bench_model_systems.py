"""Systems on a real model: what is compared decides by the same costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from models.tiny_models import write_tiny_hf_model

from slipstream.bench import model_systems
from slipstream.bench.model_systems import ModelFactory
from slipstream.config import PROFILE_COSTS, CacheSettings, ModelSettings, SchedulerSettings, Settings
from slipstream.engine import build
from slipstream.engine.cost_tables import StartingCosts
from slipstream.simulation.machines.registry import machine_named


def test_costs_are_measured_once_whatever_memory_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelSettings(
        model=str(write_tiny_hf_model(tmp_path / "tiny")), dtype="float32", device="cpu", num_threads=1
    )
    settings = Settings(model=model, scheduler=SchedulerSettings(cost_table=PROFILE_COSTS))
    measured: list[int] = []

    def measure(executor: object, config, here: object, seconds: float) -> StartingCosts:  # type: ignore[no-untyped-def]
        measured.append(config.num_kv_blocks)
        return StartingCosts(replace(machine_named("roofline:cpu:smollm2-135m:tp1"), version=len(measured)))

    monkeypatch.setattr(model_systems, "measured_costs", measure)
    factory = ModelFactory(model, progress=False)
    systems = []
    for mebibytes in (8, 6, 4):
        monkeypatch.setattr(build, "available_memory", lambda mebibytes=mebibytes: mebibytes << 20)
        systems.append(factory.build(settings, {}, 0))
    assert len({system.engine.scheduler.config.num_kv_blocks for system in systems}) == 3
    assert len(measured) == 1
    assert len({id(system.engine.scheduler.costs) for system in systems}) == 1
    for asked in (32, 24):
        factory.build(replace(settings, cache=CacheSettings(num_kv_blocks=asked)), {}, 0)
    assert measured[1:] == [32, 24], "pools that were asked for bound what can be timed"
