"""A tuning's report as one page that needs nothing else."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from slipstream.lab.tune_plot import pareto_svg
from slipstream.lab.tune_report import TuneReport, columns_of, row_of
from slipstream.version import __version__


def html_of(report: TuneReport) -> str:
    """The page."""
    tuning = report.tuning
    shown = {id(trial): trial for trial in (tuning.start, *tuning.pareto, tuning.best)}
    names = {id(tuning.best): report.best_name, id(tuning.start): "start"}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_page("tune.html")).render(
        css=_page("report.css"),
        version=__version__,
        title=report.subject.title,
        cases=report.subject.cases,
        keeps_limits=tuning.best.keeps_limits,
        has_limits=bool(tuning.limits),
        best_name=report.best_name,
        flags=" \\\n".join(report.flags()),
        findings=report.verdict(),
        notes=report.notes(),
        plot=pareto_svg(report),
        columns=columns_of(tuning.limits, len(report.subject.cases)),
        rows=[
            {"name": names.get(key, ""), "is_best": trial is tuning.best, "cells": row_of(trial, tuning.limits)}
            for key, trial in shown.items()
        ],
    )


def _page(name: str) -> str:
    return (files("slipstream.lab") / "page" / name).read_text(encoding="utf-8")
