"""The public result: what is fitted, what is predicted, and how far the prediction is from what was published."""

from __future__ import annotations

import dataclasses
import io
import re
import statistics
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from slipstream.lab.acceptance_choice import ACCEPTANCE_KEYS
from slipstream.lab.fit import fit_workload
from slipstream.lab.machine_choice import OVERRIDE_KEYS
from slipstream.lab.report_figures import FIGURES
from slipstream.lab.scenario import SETTING_NAMES
from slipstream.lab.scenario_file import load_scenario, scenario_from
from slipstream.lab.scenario_run import run
from slipstream.lab.simulation_report import CellKind, Report, report_of
from slipstream.lab.simulation_table import print_report
from slipstream.lab.workload import WORKLOAD_KEYS
from slipstream.scheduler.costs import StepShape

SCENARIOS = Path(__file__).parents[2] / "scenarios"
BARS = {"output_throughput": 0.15, "tpot_ms": 0.15, "ttft_s": 0.25}


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(run(load_scenario(SCENARIOS / "public-result.toml"), processes=2))


def column(report: Report, variant: str, figure: str) -> list[float]:
    cells = [cell for row in report.rows if row.case.variant.name == variant for cell in row.cells]
    return [cell.value for cell in cells if cell.figure.name == figure and cell.value is not None]


def test_the_after_row_is_predicted_within_the_bars(report: Report) -> None:
    assert len(report.result.scenario.workloads) == 8
    published = {"output_throughput": 3390.0, "tpot_ms": 15.7, "ttft_s": 30.0}
    for figure, bar in BARS.items():
        errors = [abs(value / published[figure] - 1) for value in column(report, "after", figure)]
        assert len(errors) == 8
        assert statistics.median(errors) <= bar, figure
        shown = next(m for m in report.misses if (m.variant, m.figure.name) == ("after", figure))
        assert shown.median_error == pytest.approx(statistics.median(errors))


def test_52_were_running_before_and_64_after(report: Report) -> None:
    assert set(column(report, "before", "running")) <= {51, 52}
    assert set(column(report, "after", "running")) == {64}


def test_acceptance_is_the_same_both_times(report: Report) -> None:
    for variant in ("before", "after"):
        for row in report.rows:
            acceptance = row.case.result.acceptance
            assert row.case.variant.name != variant or acceptance is not None
            assert acceptance is not None and acceptance.mean_length_full == pytest.approx(4.72, abs=0.02)


def test_nothing_but_the_step_with_prompts_is_fitted(report: Report) -> None:
    scenario = report.result.scenario
    assert scenario.fit is not None
    assert scenario.fit.parameter == "mixed_ms"
    assert scenario.fit.variant == "before"
    pinned = scenario.machine.build()
    decode = StepShape(num_decodes=64, num_verify_rows=320)
    assert pinned.target_ms(decode) + pinned.draft_ms(64, 320) == pytest.approx(21, abs=1)
    for workload in scenario.workloads:
        fitted = scenario.machine_of(workload, scenario.variants[0])
        assert fitted.target_ms(decode) == pinned.target_ms(decode)
        assert fitted.target_ms(StepShape(num_decodes=50, num_prompt_rows=9)) == pytest.approx(
            scenario.fit.values[workload.name]
        )
        assert 130 <= scenario.fit.values[workload.name] <= 175
        after = scenario.machine_of(workload, scenario.variants[1])
        assert after == fitted, "the after row is predicted with the machine that before was fitted on"


def test_cells_say_what_they_are(report: Report) -> None:
    for row in report.rows:
        for cell in row.cells:
            has_figure = cell.figure.name in ("output_throughput", "tpot_ms", "ttft_s", "running")
            is_fitted = row.case.variant.name == "before" and cell.figure.name in BARS
            wanted = CellKind.FITTED if is_fitted else CellKind.PREDICTED if has_figure else CellKind.PLAIN
            assert cell.kind is wanted
    text = io.StringIO()
    print_report(Console(file=text, width=120), report)
    first = next(row for row in report.rows if row.case.variant.name == "before").cells[0].value
    assert first is not None
    assert f"({first:.0f})" in text.getvalue()
    for sentence in report.result.scenario.assumptions:
        assert sentence in text.getvalue()


def test_the_fit_gives_the_values_in_the_file() -> None:
    scenario = load_scenario(SCENARIOS / "public-result.toml")
    assert scenario.fit is not None
    workload = min(scenario.workloads, key=lambda one: one.num_output_tokens)
    narrow = dataclasses.replace(scenario, fit=dataclasses.replace(scenario.fit, low=120, high=200, values={}))
    fitted = fit_workload(narrow, workload)
    assert fitted.value == pytest.approx(scenario.fit.values[workload.name], rel=2e-3)
    assert fitted.error < 0.15


def test_the_gain_is_smaller_with_piecewise_graphs_and_the_report_says_so() -> None:
    scenario = load_scenario(SCENARIOS / "piecewise-graphs.toml")
    scenario = scenario.checked(workloads=(scenario.workloads[4], scenario.workloads[6]))
    report = report_of(run(scenario, processes=2))
    gains = {gain.variant: gain for gain in report.gains if gain.figure.name == "output_throughput"}
    for ms in (25, 40):
        assert gains[f"after, {ms} ms"].baseline == f"before, {ms} ms"
        assert 1.0 < gains[f"after, {ms} ms"].median < 0.8 * gains["after"].median
        modes = {row.case.config.draft_budget for row in report.rows if f"{ms} ms" in row.case.variant.name}
        assert modes == {"shared", "separate"}
        assert any(
            f"The gain of 'after, {ms} ms' over 'before, {ms} ms' is smaller" in sentence
            for sentence in report.findings()
        )


def test_the_table_in_the_docs_is_the_one_that_is_printed(report: Report) -> None:
    text = io.StringIO()
    print_report(Console(file=text, width=100), report)
    document = (SCENARIOS.parent / "docs" / "simulation.md").read_text(encoding="utf-8")
    block = document.split("```text\n")[1].split("\n```")[0]
    assert [line.rstrip() for line in text.getvalue().splitlines()] == block.splitlines()


def test_keys_of_the_docs_are_keys_of_scenarios() -> None:
    document = (SCENARIOS.parent / "docs" / "simulation.md").read_text(encoding="utf-8")
    for name in (*SETTING_NAMES, *ACCEPTANCE_KEYS, *WORKLOAD_KEYS, *OVERRIDE_KEYS, *(f.name for f in FIGURES[:4])):
        assert f"`{name}`" in document or f"`{name} = " in document or f"[acceptance.{name}]" in document, name
    shown = document.split("```toml\n")[1].split("```")[0]
    loaded = scenario_from(tomllib.loads(shown), "shown", Path())
    assert [variant.name for variant in loaded.variants] == ["mix", "cost"]


def test_scenarios_named_in_the_docs_exist() -> None:
    document = (SCENARIOS.parent / "docs" / "simulation.md").read_text(encoding="utf-8")
    named = set(re.findall(r"scenarios/([\w-]+\.toml)", document))
    assert "public-result.toml" in named
    assert named <= {path.name for path in SCENARIOS.glob("*.toml")}
