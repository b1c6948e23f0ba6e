"""The page of a simulation: needs nothing from outside, holds every step, and shows texts as texts."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from slipstream.lab.html_report import MODES, html_of
from slipstream.lab.scenario_file import scenario_from
from slipstream.lab.scenario_run import ScenarioResult, run
from slipstream.lab.simulation_report import report_of

HOSTILE = 'a </script><img src="https://example.com/x.png"> & {{ title }}'


@pytest.fixture(scope="module")
def result() -> ScenarioResult:
    values = {
        "title": HOSTILE,
        "assumptions": [HOSTILE],
        "machine": {"name": "gb300-v4.1-flash"},
        "scheduler": {"max_num_batched_tokens": 64, "max_num_seqs": 8},
        "acceptance": {"mean": 3},
        "workload": [{"name": HOSTILE, "prompt_tokens": 30, "output_tokens": 40, "num_requests": 20}],
        "variant": [
            {"name": "before", "draft_budget": "shared"},
            {"name": HOSTILE, "baseline": "before", "machine": {"piecewise_ms": 30}},
        ],
        "published": {"source": HOSTILE, "before": {"tpot_ms": 9, "running": 6}, HOSTILE: {"tpot_ms": 5}},
        "fit": {
            "variant": "before",
            "parameter": "mixed_ms",
            "figures": ["tpot_ms"],
            "low": 1,
            "high": 99,
            "values": {HOSTILE: 44},
        },
    }
    return run(scenario_from(values, "hostile", Path()), keep_steps=True)


@pytest.fixture(scope="module")
def page(result: ScenarioResult) -> str:
    return html_of(report_of(result))


class _Elements(HTMLParser):
    """Every element with its attributes, and the text of table cells by class."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._class: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._class = dict(attrs).get("class") if tag == "span" else None

    def handle_data(self, data: str) -> None:
        if self._class:
            self.texts.setdefault(self._class, []).append(data)
            self._class = None


def parsed(page: str) -> _Elements:
    elements = _Elements()
    elements.feed(page)
    return elements


def data_of(page: str) -> dict[str, Any]:
    packed = re.search(r'<script id="data" type="text/plain">([^<]*)</script>', page)
    assert packed is not None
    value: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    return value


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    for tag, attributes in parsed(page).elements:
        assert tag not in ("img", "iframe", "object", "embed")
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
    script = page[page.index("<style>") :]
    for word in ("fetch(", "XMLHttpRequest", "@import", "url(", "import("):
        assert word not in script


def test_texts_are_texts(page: str) -> None:
    assert "</script><img" not in page
    assert page.count("</script>") == 2
    assert "&lt;/script&gt;&lt;img" in page
    assert "{{ title }}" in page, "texts are no templates"


def test_every_step_is_in_the_page(page: str, result: ScenarioResult) -> None:
    data = data_of(page)
    assert [workload["name"] for workload in data["workloads"]] == [HOSTILE]
    for drawn, case in zip(data["workloads"][0]["cases"], result.cases, strict=True):
        steps = drawn["steps"]
        assert {len(column) for column in steps.values()} == {len(case.steps)}
        assert len(case.steps) > 20
        for place, step in enumerate(case.steps):
            rows = steps["decode"][place] + steps["verify"][place] + steps["prompt"][place]
            assert rows == step.num_target_rows
            assert MODES[steps["mode"][place]] == step.mode
            assert steps["running"][place] == step.num_running
        written = sum(steps["gap"]) + sum(steps["took"])
        last = case.steps[-1]
        assert written / 1e5 == pytest.approx(last.start_time + last.duration_s, abs=1e-4)
    shared, separate = data["workloads"][0]["cases"]
    assert (shared["slots"], separate["slots"]) == (4, 0)
    assert set(separate["steps"]["mode"]) == {0, 1}, "full graphs and piecewise ones"


def test_reserved_rows_fit_the_budget(page: str) -> None:
    """What the page draws as reserved is rows that nobody could use: with the rows at most the budget."""
    case = data_of(page)["workloads"][0]["cases"][0]
    steps = case["steps"]
    for place in range(len(steps["took"])):
        rows = steps["decode"][place] + steps["verify"][place] + steps["prompt"][place]
        assert rows + steps["requests"][place] * case["slots"] <= case["budget"]


def test_fitted_and_predicted_cells_look_different(page: str, result: ScenarioResult) -> None:
    texts = parsed(page).texts
    before, after = (case.result.tpot_ms for case in result.cases)
    assert before is not None and after is not None
    assert any(text.startswith(f"{before.median:.3g}"[:3]) for text in texts["fitted"])
    assert any(text.startswith(f"{after.median:.3g}"[:3]) for text in texts["predicted"])
    assert "44.0" in texts["fitted"]
    assert re.search(r"\.fitted \{[^}]*italic", page)
    assert re.search(r"\.predicted \{[^}]*font-weight", page)


def test_light_and_dark(page: str) -> None:
    colours = set(re.findall(r"--([\w-]+): #", page.split("@media (prefers-color-scheme: dark)")[0]))
    dark = set(re.findall(r"--([\w-]+): #", page.split("@media (prefers-color-scheme: dark)")[1]))
    assert colours == dark
    assert {"decode", "verify", "prompt", "reserved", *MODES} <= colours
