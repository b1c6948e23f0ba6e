"""A simulation's report as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import json
import zlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from slipstream.bench.metrics import BenchResult, Distribution
from slipstream.lab.report_figures import FIGURES
from slipstream.lab.scenario_run import CaseResult
from slipstream.lab.simulation_report import CellKind, Report, Row
from slipstream.lab.simulation_table import UNKNOWN, error_in_words, number
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepMode
from slipstream.version import __version__

MODES = tuple(mode.value for mode in (StepMode.FULL_GRAPH, StepMode.PIECEWISE, StepMode.EAGER))
_DRAWN_FIGURES = ("output_throughput", "tpot_ms", "ttft_s")
_LATENCIES = ("median", "p90", "p99")
_NUM_VARIANT_COLOURS = 8


def html_of(report: Report) -> str:
    """The page. Steps are drawn where the run kept them."""
    scenario = report.result.scenario
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    published = [] if scenario.published is None else scenario.published.rows.items()
    return environment.from_string(_page("report.html")).render(
        css=_page("report.css"),
        js=_page("report.js"),
        data=_packed(_data(report)),
        version=__version__,
        scenario=scenario.name,
        title=scenario.title,
        machine=scenario.machine.in_words(),
        acceptance=scenario.acceptance.in_words(),
        findings=report.findings(),
        assumptions=scenario.assumptions,
        fit=scenario.fit,
        labels=[figure.label for figure in FIGURES],
        published=[
            {"variant": variant, "cells": [number(row.get(figure.name), figure.name) for figure in FIGURES]}
            for variant, row in published
        ],
        published_source="" if scenario.published is None else scenario.published.source,
        groups=_groups(report),
    )


def _page(name: str) -> str:
    return (files("slipstream.lab") / "page" / name).read_text(encoding="utf-8")


def _packed(value: dict[str, Any]) -> str:
    """Compressed and base64: pages of long runs stay small, and no text in it can end the script element."""
    text = json.dumps(value, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _groups(report: Report) -> list[dict[str, Any]]:
    """Rows of the table by workload."""
    places = {variant.name: place for place, variant in enumerate(report.result.scenario.variants)}
    return [
        {
            "workload": f"{place}: {workload.name}",
            "rows": [
                _table_row(row, places[row.case.variant.name])
                for row in report.rows
                if row.case.workload.name == workload.name
            ],
        }
        for place, workload in enumerate(report.result.scenario.workloads, start=1)
    ]


def _table_row(row: Row, place: int) -> dict[str, Any]:
    return {
        "variant": row.case.variant.name,
        "place": place % _NUM_VARIANT_COLOURS,
        "fitted": UNKNOWN if row.fitted_value is None else f"{row.fitted_value:.1f}",
        "cells": [
            {
                "text": number(cell.value, cell.figure.name),
                "kind": cell.kind.value,
                "error": "" if cell.error is None else error_in_words(cell.error),
            }
            for cell in row.cells
        ],
    }


def _data(report: Report) -> dict[str, Any]:
    """What is drawn; report.js reads it."""
    scenario = report.result.scenario
    published = {} if scenario.published is None else scenario.published.rows
    return {
        "variants": [variant.name for variant in scenario.variants],
        "modes": list(MODES),
        "latencies": [f"{name} {statistic}" for name in ("TTFT s", "TPOT ms", "E2E s") for statistic in _LATENCIES],
        "figures": [
            {
                "name": figure.name,
                "label": figure.label,
                "published": {name: row[figure.name] for name, row in published.items() if figure.name in row},
            }
            for figure in FIGURES
            if figure.name in _DRAWN_FIGURES
        ],
        "workloads": [
            {
                "name": workload.name,
                "cases": [_case(row) for row in report.rows if row.case.workload.name == workload.name],
            }
            for workload in scenario.workloads
        ],
    }


def _case(row: Row) -> dict[str, Any]:
    case, config = row.case, row.case.config
    is_shared = config.draft_budget == "shared"
    return {
        "variant": case.variant.name,
        "budget": config.max_num_batched_tokens,
        "slots": LAYOUTS[config.layout_name].reserved_slots(config.num_speculative_tokens) if is_shared else 0,
        "figures": {cell.figure.name: cell.value for cell in row.cells},
        "fitted": [cell.figure.name for cell in row.cells if cell.kind is CellKind.FITTED],
        "latencies": _latencies(case.result),
        "steps": _columns(case),
    }


def _latencies(result: BenchResult) -> list[float | None]:
    found: list[tuple[Distribution | None, float]] = [
        (result.ttft_ms, 1e3),
        (result.tpot_ms, 1.0),
        (result.e2e_ms, 1e3),
    ]
    return [None if values is None else getattr(values, name) / unit for values, unit in found for name in _LATENCIES]


def _columns(case: CaseResult) -> dict[str, list[int]]:
    """Steps by column; times in hundredths of a millisecond: `gap` since the step before ended, and what it `took`."""
    columns: dict[str, list[int]] = {
        name: [] for name in ("gap", "took", "running", "waiting", "decode", "verify", "prompt", "requests", "mode")
    }
    written = 0
    for step in case.steps:
        start, end = round(step.start_time * 1e5), round((step.start_time + step.duration_s) * 1e5)
        values = (
            start - written,
            end - start,
            step.num_running,
            step.num_waiting,
            step.num_target_rows - step.num_verify_rows - step.num_prefill_rows,
            step.num_verify_rows,
            step.num_prefill_rows,
            step.num_requests,
            MODES.index(step.mode),
        )
        written = end
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns
