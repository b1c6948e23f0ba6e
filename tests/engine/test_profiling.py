"""Profiles: a machine of known costs is found again in bounded time, and an engine is left as it was."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from driver import make_config
from execution.running import tiny_executor
from models.tiny_models import write_tiny_hf_model

from slipstream.bench.model_systems import ModelFactory
from slipstream.bench.systems import ScriptedFactory
from slipstream.cli import build_parser
from slipstream.config import ModelSettings, SchedulerConfig, SchedulerSettings, SettingError, Settings
from slipstream.engine.build import BuiltEngine
from slipstream.engine.cost_fit import fit_host, non_negative_least_squares
from slipstream.engine.cost_table_files import read_cost_table, write_cost_table
from slipstream.engine.llm import LLM
from slipstream.engine.profile_shapes import PassShape, pass_shapes, row_axis, sampled_rows
from slipstream.engine.profiling import CostProfiler, Profile
from slipstream.engine.step_probe import StepProbe
from slipstream.lab.profile_command import run as run_profile
from slipstream.request import SamplingParams
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import StepShape
from slipstream.scheduler.protocol import StepMode
from slipstream.scheduler.scheduler import Scheduler
from slipstream.speculation.ngram import NgramDrafter

CONFIG = make_config(
    max_num_batched_tokens=96, max_num_seqs=16, max_model_len=2048, num_kv_blocks=1024, num_speculative_tokens=5
)


@dataclass
class Machine:
    """A Probe of known costs: a stair of 16 rows, requests, KV and pairs; its clock goes on by what it runs.

    Attributes:
        noise: spread of the times. speed: of the machine.
    """

    noise: float = 0.0
    speed: float = 1.0
    now: float = 0.0
    tile_rows: int | None = 16
    has_drafter: bool = True
    is_closed: bool = False
    ran: list[object] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def clock(self) -> float:
        return self.now

    def law(self, shape: PassShape) -> float:
        tiles = -(-shape.num_rows // 16)
        return 9.0 + 23.0 * tiles + 5.0 * shape.num_requests + 0.02 * shape.num_kv_tokens + 0.001 * shape.num_pairs

    def pass_ms(self, shape: PassShape) -> float:
        return self._took(self.law(shape), shape)

    def sampling_ms(self, num_rows: int) -> float:
        return self._took(1.0 + 0.4 * num_rows, num_rows)

    def draft_ms(self, num_requests: int, num_drafts: int, num_query_rows: int) -> float:
        return self._took(0.5 * num_requests, (num_requests, num_drafts, num_query_rows))

    def host_ms(self, scheduler: Scheduler, num_requests: int) -> float:
        return self._took(0.2 + 0.05 * num_requests, "host")

    def close(self) -> None:
        self.is_closed = True

    def _took(self, ms: float, what: object) -> float:
        ms *= self.random.lognormvariate(0.0, self.noise) / self.speed
        self.now += ms / 1e3
        self.ran.append(what)
        return ms


def profile_of(machine: Machine, config: SchedulerConfig = CONFIG, seconds: float = 60.0) -> Profile:
    profiler = CostProfiler(machine, config, clock=machine.clock)
    profiler.run(seconds)
    profile = profiler.profile()
    assert profile is not None
    return profile


def shape_of_pass(shape: PassShape) -> StepShape:
    """The pass as prompt chunks."""
    return StepShape(
        0, 0, shape.num_rows, 0, shape.num_kv_tokens, num_prompts=shape.num_requests, num_attended=shape.num_pairs
    )


@pytest.mark.parametrize(("noise", "tolerance"), [(0.0, 0.005), (0.1, 0.12)])
def test_a_known_machine_is_found_again(noise: float, tolerance: float) -> None:
    machine = Machine(noise)
    table = profile_of(machine).table(Provenance("m", "n"))
    for rows, context in (((6,) * 16, 100), ((6,) * 8 + (24,), 64), ((1,) * 12, 700), ((40,), 1000), ((96,), 0)):
        shape = PassShape(rows, context)
        assert table.pass_ms(shape_of_pass(shape)) == pytest.approx(machine.law(shape), rel=tolerance), shape
    sampled = StepShape(16, 80, num_kv_tokens=0)
    without = replace(table, sampling=None)
    assert table.pass_ms(sampled) - without.pass_ms(sampled) == pytest.approx(1.0 + 0.4 * 96, rel=3 * tolerance)
    assert table.draft_ms(16, 0) == pytest.approx(8.0, rel=3 * tolerance)
    assert table.host(10) == pytest.approx(0.7, rel=3 * tolerance)
    assert machine.is_closed
    assert "medians of 7 to 7 repeats" in table.provenance.notes


def test_row_costs_never_fall_whatever_the_noise() -> None:
    for seed in range(5):
        machine = Machine(0.5)
        machine.random.seed(seed)
        grid = profile_of(machine, seconds=3.0).table(Provenance("m", "n")).target[StepMode.EAGER]
        costs = [line[0] for line in grid.ms]
        assert costs == sorted(costs)


def test_what_is_short_is_timed_often_and_all_the_time() -> None:
    """Steps of few requests decide whether to draft, and cost little to time."""
    machine = Machine()
    profile = profile_of(machine, seconds=12.0)
    assert profile.num_skipped == 0 and profile.num_repeats[0] < 4
    places = [place for place, what in enumerate(machine.ran) if what == PassShape((16,), 0)]
    assert len(places) >= 6  # the first warms up
    longest = max((what for what in machine.ran if isinstance(what, PassShape)), key=machine.law)
    assert places[2] < machine.ran.index(longest) < places[-2]


def test_drafts_never_pass_for_free() -> None:
    """Large passes are left out before the drafter's; where even that was not timed, there is no table."""
    tables = []
    for seconds in (0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0):
        machine = Machine()
        profiler = CostProfiler(machine, CONFIG, clock=machine.clock)
        profiler.run(seconds)
        profile = profiler.profile()
        if profile is not None:
            tables.append(profile.table(Provenance("m", "n")))
            assert profile.num_skipped > 0
    assert 3 <= len(tables) < 7
    assert [table.draft_ms(1, 5) for table in tables] == pytest.approx([0.5] * len(tables))


@pytest.mark.parametrize("speed", [100.0, 1.0, 0.3, 0.05])
@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_the_time_is_bounded(speed: float, seconds: float) -> None:
    """Nothing is begun that would end too late; only the very first quantity has nothing to be judged by."""
    machine = Machine(0.1, speed)
    profiler = CostProfiler(machine, CONFIG, clock=machine.clock)
    profiler.run(seconds)
    first_ms = 3 * machine.law(PassShape((16,), 0)) / speed
    assert machine.now <= max(seconds * 1.2, first_ms / 1e3)
    profile = profiler.profile()
    if profile is None:
        assert speed * seconds < 0.5
        return
    assert (profile.num_skipped > 0) == (speed * seconds < 10.0)
    # What was left out goes on as cost rose so far, however steep the stair's last edge was.
    table = profile.table(Provenance("m", "n"))
    shape = PassShape((96,), 0)
    assert table.pass_ms(shape_of_pass(shape)) == pytest.approx(machine.law(shape) / speed, rel=0.8)


def test_what_was_left_out_comes_first_the_next_time() -> None:
    machine = Machine()
    profiler = CostProfiler(machine, CONFIG, clock=machine.clock)
    profiler.run(2.0)
    before = profiler.profile()
    assert before is not None
    assert before.num_skipped > 0
    for _ in range(6):
        profiler.run(2.0)
    after = profiler.profile()
    assert after is not None
    assert after.num_skipped == 0


@pytest.mark.parametrize("blocks", [1, 2, 7, 40])
@pytest.mark.parametrize("max_model_len", [8, 64, 2048])
def test_only_what_fits_the_pool_and_the_model_is_run(blocks: int, max_model_len: int) -> None:
    config = replace(CONFIG, num_kv_blocks=blocks, max_model_len=max_model_len)
    shapes = pass_shapes(config, row_axis(96, 16))
    assert shapes
    for shape in shapes:
        assert shape.num_blocks(16) <= blocks
        assert shape.context + max(shape.rows) < max_model_len
        assert shape.num_rows <= 96


def test_axes() -> None:
    assert row_axis(96, 16) == (1, 16, 17, 32, 33, 48, 49, 64, 65, 80, 81, 96)
    assert row_axis(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert row_axis(1) == (1,)
    assert sampled_rows(CONFIG) == (1, 4, 16, 64, 96)


def test_least_squares_without_negatives() -> None:
    import numpy as np

    matrix = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(non_negative_least_squares(matrix, matrix @ np.array([2.0, 3.0])), [2.0, 3.0])
    np.testing.assert_allclose(non_negative_least_squares(matrix, np.array([3.0, 2.0, 1.0])), [2.0, 0.0])
    assert fit_host({}).per_step_ms == 0.0
    assert fit_host({1: 2.0}).per_request_ms == 0.0


def state_of(executor: Any) -> tuple[object, ...]:
    """What an executor and its drafter remember of requests."""
    return dict(executor._state.requests), dict(executor.drafter.drafter._indexes), dict(executor.draft_failures)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_executor_forgets_everything(tmp_path: Path, batch_invariant: bool) -> None:
    executor = tiny_executor(tmp_path, drafter=NgramDrafter(2, 4), batch_invariant=batch_invariant, num_kv_blocks=8)
    config = make_config(num_kv_blocks=8, num_speculative_tokens=3, max_num_batched_tokens=32)
    profiler = CostProfiler(StepProbe(executor, temperature=1.0), config)
    for _ in range(2):
        profiler.run(30.0, rounds=1)
        assert state_of(executor) == ({}, {}, {})
    profile = profiler.profile()
    assert profile is not None
    assert profile.draft
    assert profile.num_skipped == 0
    assert all(ms > 0.0 for ms in (*profile.passes.values(), *profile.sampling.values(), *profile.host.values()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_hf_model(directory)
    return str(directory)


def built(model: str, **settings: Any) -> LLM:
    flat: dict[str, Any] = {
        "num_threads": 1,
        "dtype": "float32",
        "batch_invariant": True,
        "max_model_len": 128,
        "max_num_seqs": 4,
    }
    return LLM(model, seed=1, **flat, **settings)


def cost_row(engine: BuiltEngine) -> tuple[object, str, str]:
    row = next(row for row in engine.resolution.report if row.name == "cost_table")
    return row.value, row.source, row.reason


@pytest.mark.parametrize("num_kv_blocks", [3, 64])
@pytest.mark.parametrize("commit_lag", [0, 1])
def test_profiling_at_start_changes_no_text_and_no_statistics(model: str, num_kv_blocks: int, commit_lag: int) -> None:
    sampling = [SamplingParams(temperature=1.0, max_tokens=12), SamplingParams(temperature=0.0, max_tokens=12)]
    texts = []
    for cost_table in ("none", "profile"):
        llm = built(
            model, cost_table=cost_table, num_kv_blocks=num_kv_blocks, commit_lag=commit_lag, profile_seconds=2.0
        )
        scheduler = llm.built.engine.scheduler
        assert scheduler.statistics.num_steps == {}
        assert scheduler.kv.pool.num_used == 0
        texts.append([result.choices[0].token_ids for result in llm.generate([[5, 6, 7], [8, 9]], sampling)])
        assert (scheduler.costs is None) == (cost_table == "none")
    assert texts[0] == texts[1]
    assert cost_row(llm.built)[1] == "derived"
    assert cost_row(llm.built)[2].startswith("measured in ")
    llm.built.engine.close()


def test_live_steps_reach_the_refitter(model: str) -> None:
    llm = built(model, cost_table="profile", profile_seconds=1.0)
    refitter = llm.built.refitter
    assert refitter is not None
    llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    assert len(refitter._drifts[StepMode.EAGER]) > 3
    events: list[object] = []
    refitter.listeners.append(events.append)
    refitter._refit(1, StepMode.EAGER, 0.1)
    assert llm.built.engine.scheduler.costs is refitter.table
    assert refitter.table.version == 1
    assert len(events) == 1


def test_a_table_of_another_machine_is_used_with_a_warning(model: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    table = profile_of(Machine()).table(Provenance("another machine", "another model"))
    write_cost_table(table, path)
    assert read_cost_table(path) == table
    llm = built(model, cost_table=str(path))
    value, source, reason = cost_row(llm.built)
    assert (value, source) == (str(path), "user")
    assert reason.startswith("warning: it is of machine 'another machine', this is '")
    assert "of model 'another model', this is '" in reason
    assert llm.built.engine.scheduler.costs == table


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "Expecting property name"),
        ("[]", "a cost table is a JSON object"),
        ('{"format": "slipstream-cost-table/1"}', "target_ms must be a JSON object"),
    ],
)
def test_a_bad_file_is_refused_before_weights_load(
    model: str, tmp_path: Path, content: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*args: object, **kwargs: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr("slipstream.engine.build.build_executor", loaded)
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingError, match=re.escape(message)) as error:
        built(model, cost_table=str(path))
    assert str(path) in str(error.value)


def test_too_short_a_profile_is_said_and_decides_without(model: str) -> None:
    llm = built(model, cost_table="profile", profile_seconds=1e-6)
    assert llm.built.engine.scheduler.costs is None
    assert "too short to measure a step; decides without a table" in cost_row(llm.built)[2]


def test_compared_systems_decide_by_one_table(model: str) -> None:
    settings = ModelSettings(model=model, num_threads=1, dtype="float32", max_model_len=128)
    factory = ModelFactory(settings, progress=False)
    scheduler = SchedulerSettings(max_num_batched_tokens=16, max_num_seqs=4, cost_table="profile", profile_seconds=1.0)
    one = factory.build(Settings(model=settings, scheduler=scheduler), {}, 0)
    other = factory.build(Settings(model=settings, scheduler=replace(scheduler, composition="mix")), {}, 0)
    assert isinstance(one.engine.scheduler.costs, CostTable)
    assert one.engine.scheduler.costs is other.engine.scheduler.costs


def test_a_scripted_target_cannot_be_measured() -> None:
    scheduler = SchedulerSettings(cost_table="profile")
    with pytest.raises(SettingError, match="--cost-table profile measures a model"):
        ScriptedFactory().build(Settings(scheduler=scheduler), {}, 0)


def test_the_command_writes_what_serve_reads(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    words = ["profile", model, "--output", str(path), "--seconds", "2", "--max-num-seqs", "4", "--num-threads", "1"]
    assert run_profile(build_parser("profile").parse_args([*words, "--max-num-batched-tokens", "16"])) == 0
    table = read_cost_table(path)
    assert json.loads(path.read_text())["provenance"]["machine"] == table.provenance.machine
    shown = capsys.readouterr().out
    assert "Passes without sampling" in shown
    assert table.provenance.notes[0] in shown
    llm = LLM(model, num_threads=1, cost_table=str(path), max_model_len=128)
    assert cost_row(llm.built)[2] == f"measured {table.provenance.date} for this machine and model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cost-table", "x"], "--cost-table has no meaning for profile"),
        (["--profile-seconds", "3"], "use --seconds"),
        (["--seconds", "0"], "--seconds must be above 0"),
        (["--seconds", "nan"], "--seconds must be above 0"),
        (["--temperature", "-1"], "--temperature must be from 0 on"),
        (["--output", "/nowhere/at/all.json"], "--output /nowhere/at/all.json"),
    ],
)
def test_bad_flags_of_the_command(words: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        run_profile(build_parser("profile").parse_args(["profile", *words]))
