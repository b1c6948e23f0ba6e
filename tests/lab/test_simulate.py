"""Runs in virtual time: deterministic, within every budget, and fast; and `slipstream simulate` around them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from machine_speed import skip_if_slow

from slipstream.bench.arrivals import all_at_once
from slipstream.cli import main
from slipstream.config import SchedulerConfig
from slipstream.lab.fit import least
from slipstream.lab.scenario import Scenario
from slipstream.lab.scenario_file import load_scenario, scenario_from
from slipstream.lab.scenario_run import run
from slipstream.lab.simulate import SimulatedRequest, Simulation, simulate
from slipstream.lab.simulation_report import report_of
from slipstream.simulation.acceptance import GeometricAcceptance, conditional_acceptance
from slipstream.simulation.machines.registry import machine_named

PUBLIC = Path(__file__).parents[2] / "scenarios" / "public-result.toml"


def small(**changes: Any) -> Scenario:
    values = {
        "machine": {"name": "gb300-v4.1-flash", "mixed_ms": 60},
        "scheduler": {"max_num_batched_tokens": 96, "max_num_seqs": 12, "num_speculative_tokens": 4},
        "acceptance": {"mean": 3.0},
        "workload": [
            {
                "name": "w",
                "prompt_tokens": {"distribution": "uniform", "low": 5, "high": 90},
                "output_tokens": {"distribution": "exponential", "mean": 60, "high": 300},
                "num_requests": 40,
                "arrivals": {"kind": "closed", "concurrency": 16},
            }
        ],
        "variant": [{"name": "shared", "draft_budget": "shared"}, {"name": "separate"}],
        **changes,
    }
    return scenario_from(values, "small", Path())


def test_the_same_on_one_core_and_on_two() -> None:
    scenario = small()
    done: list[int] = []
    one = run(scenario, keep_steps=True)
    two = run(scenario, processes=2, keep_steps=True, on_done=lambda: done.append(1))
    assert len(done) == 2
    assert [case.variant.name for case in two.cases] == ["shared", "separate"]
    for a, b in zip(one.cases, two.cases, strict=True):
        assert a.steps == b.steps
        assert a.result == b.result


@pytest.mark.parametrize("layout", ["dspark", "eagle3", "draft_model", "ngram"])
@pytest.mark.parametrize("budget", ["shared", "separate"])
def test_every_step_is_within_its_budgets(layout: str, budget: str) -> None:
    scenario = small(
        scheduler={
            "max_num_batched_tokens": 96,
            "max_num_seqs": 12,
            "num_speculative_tokens": 4,
            "layout": layout,
            "draft_budget": budget,
            "num_kv_blocks": 40,  # short: requests are preempted
            "composition": "mix",
            "verification": "fixed",
        },
        variant=[{"name": "only"}],
    )
    case = run(scenario, keep_steps=True).cases[0]
    workload = scenario.workloads[0]
    assert case.result.completed == 40
    assert case.result.total_output_tokens == workload.num_output_tokens
    assert case.result.in_flight.peak == 16
    assert max(step.num_running for step in case.steps) <= 12
    clock = 0.0
    for step in case.steps:
        assert step.start_time >= clock
        clock = step.start_time + step.duration_s
        assert step.num_target_rows <= 96
        assert step.num_draft_query_rows <= case.config.draft_capacity
        assert step.num_requests <= step.num_target_rows
    rows = sum(step.num_prefill_rows for step in case.steps)
    assert rows > workload.num_prompt_tokens, "the pool is too large for this test: nobody was preempted"


def test_drafts_save_steps_and_prompts_cost_what_the_machine_says() -> None:
    scenario = small(variant=[{"name": "none", "num_speculative_tokens": 0}, {"name": "some", "composition": "mix"}])
    none, some = run(scenario, keep_steps=True).cases
    assert len(some.steps) < 0.6 * len(none.steps)
    assert some.result.acceptance is not None
    assert some.result.acceptance.mean_length_full == pytest.approx(3.0, rel=0.05)
    for step in some.steps:
        if step.kind != "decode":
            assert step.target_ms == pytest.approx(60)
            assert step.mode == "eager"
        else:
            assert step.mode == "full_graph"


def test_requests_at_a_rate_wait_for_nobody() -> None:
    workload = {
        "prompt_tokens": 30,
        "output_tokens": 20,
        "num_requests": 50,
        "arrivals": {"kind": "poisson", "rate": 2.0},
    }
    scenario = small(workload=[workload], variant=[{"name": "only"}])
    result = run(scenario).cases[0].result
    times = scenario.workloads[0].arrivals.times
    assert result.completed == 50
    assert result.duration_s >= times[-1] - times[0]
    assert result.client_queue_ms is not None
    assert result.client_queue_ms.mean == 0.0


def test_findings_are_computed() -> None:
    """The sentence on gains turns round when the numbers do."""
    fast, slow = {"mixed_ms": 5}, {"mixed_ms": 200}
    variants = [
        {"name": "a", "machine": slow},
        {"name": "b", "machine": fast, "baseline": "a"},
        {"name": "c", "machine": fast},
        {"name": "d", "machine": fast, "max_num_seqs": 8, "baseline": "c"},
    ]
    found = " ".join(report_of(run(small(variant=variants))).findings())
    assert "The gain of 'd' over 'c' is smaller" in found
    swapped = [
        {"name": "a", "machine": fast},
        {"name": "b", "machine": fast, "max_num_seqs": 8, "baseline": "a"},
        {"name": "c", "machine": slow},
        {"name": "d", "machine": fast, "baseline": "c"},
    ]
    found = " ".join(report_of(run(small(variant=swapped))).findings())
    assert "The gain of 'd' over 'c' is larger" in found


def test_the_least_point_of_a_valley() -> None:
    for middle in (70.0, 155.0, 290.0):
        assert least(lambda x, m=middle: abs(x - m), 60, 300) == pytest.approx(middle, rel=2e-3)
        assert least(lambda x, m=middle: (x / m - 1) ** 2, 60, 300) == pytest.approx(middle, rel=2e-3)
    assert least(lambda x: -x, 60, 300) == pytest.approx(300, rel=2e-3)
    assert least(lambda x: x, 60, 300) == pytest.approx(60, rel=2e-3)


SCENARIO = """
[machine]
name = "gb300-v4.1-flash"
[scheduler]
max_num_batched_tokens = 64
max_num_seqs = 8
[acceptance]
mean = 3
[[workload]]
name = "few [b]"
prompt_tokens = 10
output_tokens = 20
num_requests = 10
[[variant]]
name = "one"
[[variant]]
name = "two"
max_num_seqs = 4
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, numbers, page = (tmp_path / name for name in ("s.toml", "s.json", "s.html"))
    path.write_text(SCENARIO)
    arguments = [
        "simulate",
        str(path),
        "--json",
        str(numbers),
        "--html",
        str(page),
        "--no-progress",
        "--processes",
        "1",
    ]
    assert main([*arguments, "--set", "block_size=8"]) == 0
    shown = capsys.readouterr().out
    assert "few [b]" in shown
    assert "two over one: output throughput x 0." in shown
    cases = json.loads(numbers.read_text())["cases"]
    assert [case["variant"] for case in cases] == ["one", "two"]
    assert [case["peak_running"] for case in cases] == [8, 4]
    assert cases[0]["figures"]["output_throughput"]["value"] == cases[0]["output_throughput"]
    assert "<!doctype html>" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml"], "none.toml cannot be read"),
        (["s.toml", "--set", "max_num_sqs=3"], "did you mean 'max_num_seqs'"),
        (["s.toml", "--json", "nowhere/x.json"], "there is no folder"),
        (["s.toml", "--processes", "0"], "between 1 and 1024, got 0"),
        (["s.toml", "--fit"], "nothing to fit"),
        (["s.toml", "--htlm", "x"], "did you mean '--html'"),
    ],
)
def test_the_command_refuses(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["simulate", *arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.strip().splitlines()) == 1


# -- speed ---------------------------------------------------------------------------------------------------------


@pytest.mark.timing
def test_three_thousand_steps_a_second_at_64_running() -> None:
    """The bar of the lab: 64 requests that all decode with drafts. Processor time, the best of a few tries: machines
    are shared."""
    skip_if_slow()
    config = SchedulerConfig(
        max_num_batched_tokens=512,
        max_num_seqs=64,
        max_model_len=8192,
        block_size=64,
        num_kv_blocks=64 * 128,
        enable_prefix_caching=False,
        layout_name="dspark",
        num_speculative_tokens=5,
        draft_capacity=320,
        min_prefill_tokens=64,
        composition="mix",
        verification="fixed",
    )
    acceptance = GeometricAcceptance(conditional_acceptance(4.72, 5))
    workload = [SimulatedRequest(128, 6000)] * 64
    rates = []
    for _ in range(5):
        simulation = Simulation(config, machine_named("gb300-v4.1-flash"), acceptance, workload, all_at_once(64))
        start = time.process_time()
        record = simulate(simulation).record
        rates.append(len(record.steps) / (time.process_time() - start))
        full = [step for step in record.steps if step.num_running == 64]
        assert len(full) > 0.9 * len(record.steps)
        if rates[-1] >= 3000:
            break
    assert max(rates) >= 3000, f"steps per second: {[round(rate) for rate in rates]}"


@pytest.mark.timing
def test_before_and_after_with_their_report_within_five_seconds(tmp_path: Path) -> None:
    from slipstream.lab.html_report import html_of

    skip_if_slow()
    start = time.process_time()
    scenario = load_scenario(PUBLIC)
    scenario = scenario.checked(workloads=scenario.workloads[:1])
    report = report_of(run(scenario, keep_steps=True))
    (tmp_path / "r.html").write_text(html_of(report))
    assert len(report.rows) == 2
    assert time.process_time() - start <= 5.0
