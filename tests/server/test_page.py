"""The page's files and the data behind it: routes, headers, what `/v1/live` says, and that the build is not stale."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from page_model import UnsureDrafter, timed
from server_helpers import NAME, RunningServer, Starter

from slipstream.engine.recent_steps import RecentSteps
from slipstream.scheduler.protocol import StepPlan, StepResult
from slipstream.server.page_files import FOLDER, MEDIA_TYPES
from slipstream.server.recent_requests import WINDOW_S, TokensPerSecond

SOURCES = Path(__file__).parents[2] / "page"
SETUP = ("index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")
K = 4


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=K, wrap=timed(UnsureDrafter))


@pytest.fixture(scope="module")
def live(server: RunningServer) -> dict[str, Any]:
    """After two answers of 40 tokens."""
    for seed in (1, 2):
        body = {"model": NAME, "prompt": "hello hello", "max_tokens": 40, "seed": seed, "ignore_eos": True}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).status_code == 200
    found: dict[str, Any] = httpx.get(f"{server.url}/v1/live").json()
    return found


def steps_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(answer["steps"]["columns"], row, strict=True)) for row in answer["steps"]["rows"]]


def test_the_built_page_is_that_of_the_sources() -> None:
    record = json.loads((FOLDER / "build.json").read_text())
    names = sorted([*SETUP, *(f"src/{path.name}" for path in (SOURCES / "src").iterdir())])
    lines = [f"{name} {sha256((SOURCES / name).read_bytes())}\n" for name in names]
    assert record["sources"] == sha256("".join(lines).encode()), "page/ changed since it was built: run `make page`"
    assert record["files"] == {name: sha256((FOLDER / name).read_bytes()) for name in MEDIA_TYPES}
    assert sum(len((FOLDER / name).read_bytes()) for name in MEDIA_TYPES) < 150_000


@pytest.mark.parametrize("name", MEDIA_TYPES)
def test_files_of_the_page_are_served_with_headers_that_keep_it_to_itself(server: RunningServer, name: str) -> None:
    path = "/" if name == "index.html" else f"/{name}"
    answer = httpx.get(server.url + path)
    assert answer.status_code == 200 and answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == f"{MEDIA_TYPES[name]}; charset=utf-8"
    rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'" and rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["connect-src"] == rules["style-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(server.url + path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_names_only_its_own_files(server: RunningServer) -> None:
    text = httpx.get(server.url + "/").text
    linked = re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    assert sorted(link for link in linked if link != "data:,") == ["./page.css", "./page.js"]
    assert "<script>" not in text and "style=" not in text
    for name in ("page.js", "page.css"):
        addresses = set(re.findall(r"https?://[\w.]+", (FOLDER / name).read_text()))
        assert addresses <= {"http://www.w3.org"}, "names of XML spaces are no requests; anything else would be one"


@pytest.mark.parametrize("path", ["/build.json", "/page/build.json", "/..%2fapp.py", "/index.html"])
def test_nothing_else_of_the_package_is_served(server: RunningServer, path: str) -> None:
    assert httpx.get(server.url + path).status_code == 404


def test_live_steps_add_up_to_the_engines_counters(server: RunningServer, live: dict[str, Any]) -> None:
    steps, statistics = steps_of(live), server.engine.scheduler.statistics
    assert [step["step"] for step in steps] == list(range(len(steps))) and len(steps) > 10
    assert sum(step["prompt_rows"] for step in steps) == statistics.num_prefill_rows > 0
    assert sum(step["verify_rows"] for step in steps) == statistics.num_verified_tokens > 0
    rows = [step["decode_rows"] + step["verify_rows"] + step["prompt_rows"] for step in steps]
    assert sum(rows) == statistics.num_target_rows
    assert {step["kind"] for step in steps} == {"prefill", "decode"} and {step["mode"] for step in steps} == {"eager"}
    assert all(step["target_ms"] > 0 for step in steps)


def test_live_figures_are_those_of_the_answers(server: RunningServer, live: dict[str, Any]) -> None:
    speculation, speed, load = live["speculation"], live["speed"], live["load"]
    statistics = server.engine.scheduler.statistics
    assert speculation["num_speculative_tokens"] == K
    assert speculation["accepted_per_position"] == statistics.accepted_per_position()
    assert speculation["verified_per_position"] == statistics.verified_per_position()
    assert 0 < sum(speculation["accepted_per_position"]) < sum(speculation["verified_per_position"])
    assert speed["num_measured"] == 2 and speed["first_token_ms"] > 0 and speed["per_token_ms"] > 0
    assert 0 < speed["output_tokens_per_s"] <= 80 / WINDOW_S
    assert (load["running"], load["waiting"], load["kv_usage"]) == (0, 0, 0.0)
    bins = speculation["calibration"]
    assert bins == sorted(bins, key=lambda found: found["said"]) and len(bins) > 3
    judged = sum(found["judged"] for found in bins)
    assert judged >= sum(speculation["accepted_per_position"])
    assert sum(found["judged"] * found["accepted"] for found in bins) == pytest.approx(
        sum(speculation["accepted_per_position"])
    )


def test_live_gives_only_steps_that_were_not_seen(server: RunningServer, live: dict[str, Any]) -> None:
    last = steps_of(live)[-1]["step"]
    ask = {"after": last - 3}
    assert [step["step"] for step in steps_of(httpx.get(f"{server.url}/v1/live", params=ask).json())] == [
        last - 2,
        last - 1,
        last,
    ]
    newest = httpx.get(f"{server.url}/v1/live", params={"after": last}).json()
    assert newest["steps"]["rows"] == [] and newest["instance"] == live["instance"]
    refused = httpx.get(f"{server.url}/v1/live", params={"after": "soon"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "after"


def test_a_server_without_drafts_says_so(start_server: Starter) -> None:
    found = httpx.get(f"{start_server().url}/v1/live").json()
    assert found["speculation"] is None and found["steps"]["rows"] == [] and found["speed"]["first_token_ms"] is None


def test_only_the_last_steps_are_remembered() -> None:
    steps = RecentSteps(num_kept=3)
    for number in range(5):
        steps(StepPlan(number, []), StepResult(number, [], target_ms=1.5, draft_ms=0.5))
    assert [record.step for record in steps.after(-1)] == [2, 3, 4]
    assert [record.step for record in steps.after(3)] == [4] and steps.after(4) == []


def test_tokens_per_second_forget_what_is_old() -> None:
    rate = TokensPerSecond()
    assert rate.rate(5.0) == 0.0
    for second in range(20):
        for part in (0.0, 0.5):
            rate.add(second + part, 3)
    assert rate.rate(19.75) == pytest.approx((WINDOW_S + 1) * 6 / (WINDOW_S + 0.75))
    assert rate.rate(19.0 + 2 * WINDOW_S) == 0.0
