"""A simulation's report in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slipstream.lab.report_figures import FIGURES
from slipstream.lab.simulation_report import Cell, CellKind, Report

UNKNOWN = "–"


def print_report(console: Console, report: Report) -> None:
    """Title, table, findings and assumptions. Fitted cells are dim and in parentheses, predicted ones bold."""
    scenario = report.result.scenario
    console.print(scenario.title, style="bold", highlight=False, markup=False, soft_wrap=True)
    console.print(f"machine: {scenario.machine.in_words()}", highlight=False, markup=False, soft_wrap=True)
    fit, published = scenario.fit, scenario.published
    several = len(scenario.workloads) > 1
    places = {workload.name: str(place) for place, workload in enumerate(scenario.workloads, start=1)}
    for name, place in places.items():
        prefix = f"workload {place}" if several else "workload"
        console.print(f"{prefix}: {name}", highlight=False, markup=False, soft_wrap=True)
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for figure in FIGURES:
        table.add_column(figure.label, justify="right", min_width=6)
    if fit is not None:
        table.add_column(fit.parameter.replace("_", " "), justify="right", min_width=7)
    if published is not None:
        for variant, row in published.rows.items():
            table.add_row(
                "published", escape(variant), *(number(row.get(figure.name), figure.name) for figure in FIGURES)
            )
        table.add_section()
    last = None
    for entry in report.rows:
        name = entry.case.workload.name
        if last is not None and name != last and len(scenario.variants) > 1:
            table.add_section()
        fitted = [] if fit is None else [_fitted(entry.fitted_value)]
        place = places[name] if name != last and several else ""
        table.add_row(place, escape(entry.case.variant.name), *map(_cell, entry.cells), *fitted)
        last = name
    console.print(table)
    if fit is not None:
        console.print(
            f"(in parentheses) fitted: {fit.parameter} is chosen so that {fit.variant} gives the published figures; "
            "bold: predicted",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    for sentence in report.findings():
        console.print(f"* {sentence}", highlight=False, markup=False, soft_wrap=True)
    if scenario.assumptions:
        console.print("Assumed:", style="bold")
        for sentence in scenario.assumptions:
            console.print(f"* {sentence}", highlight=False, markup=False, soft_wrap=True)


def number(value: float | None, figure: str) -> str:
    """A figure with as many digits as mean something."""
    if value is None:
        return UNKNOWN
    if figure == "prompt_step_share":
        return f"{value:.0%}"
    if figure in ("output_throughput", "running"):
        return f"{value:.0f}" if value >= 100 or value.is_integer() else f"{value:.1f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def error_in_words(error: float) -> str:
    """`+3%`; 0% has no sign."""
    return f"{error:+.0%}" if abs(error) >= 0.005 else "0%"


def _fitted(value: float | None) -> str:
    return UNKNOWN if value is None else f"[dim italic]({value:.1f})[/]"


def _cell(cell: Cell) -> str:
    text = number(cell.value, cell.figure.name)
    if cell.kind is CellKind.FITTED:
        return f"[dim italic]({text})[/]"
    return f"[bold]{text}[/]" if cell.kind is CellKind.PREDICTED else text
