"""`/metrics`: what vLLM's dashboards ask for is there, ours adds up, and the documentation names all of it."""

from __future__ import annotations

import logging
import re
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from server_helpers import NAME, RunningServer, Starter
from test_server_faults import completion, metrics_of, post

from slipstream.engine.refit import CostRefitter
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import RequestResult, ScheduledRequest, StepMode, StepPlan, StepResult
from slipstream.server.metrics import EngineCollector, buckets
from slipstream.simulation.drafters import wrong

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
STAGES = ("drafted", "admitted", "verified", "accepted")


@pytest.fixture(scope="module")
def samples(start_server: Starter) -> dict[str, list[tuple[dict[str, str], float]]]:
    server: RunningServer = start_server(num_speculative_tokens=3, draft_max_model_len=60)
    for n in (1, 2):
        answer = post(
            server, "/v1/completions", completion(prompt="hello world", max_tokens=90, n=n, seed=1, ignore_eos=True)
        )
        assert answer.status_code == 200
    return metrics_of(server)


def total(samples: dict[str, Any], name: str) -> float:
    return sum(value for _, value in samples[name])


def test_names_that_dashboards_filter_by_have_their_labels(samples: dict[str, Any]) -> None:
    without_engine = {"vllm:admission_rejections_total"}
    without_model = {"vllm:cache_config_info"}
    for name, values in samples.items():
        if name.startswith("vllm:") and not name.endswith("_created"):
            for labels, _ in values:
                assert name in without_model or labels["model_name"] == NAME, name
                assert name in without_engine or labels["engine"] == "0", name


def test_stages_of_a_draft_add_up_per_position(samples: dict[str, Any]) -> None:
    by_position = {
        stage: [value for _, value in samples[f"slipstream:spec_decode_num_{stage}_tokens_per_pos_total"]]
        for stage in STAGES
    }
    for stage in STAGES:
        assert sum(by_position[stage]) == total(samples, f"slipstream:spec_decode_num_{stage}_tokens_total") > 0
    for earlier, later in pairwise(STAGES):
        assert all(a >= b for a, b in zip(by_position[earlier], by_position[later], strict=True))
    assert total(samples, "vllm:spec_decode_num_draft_tokens_total") == sum(by_position["verified"])


def test_rows_by_kind_and_mode(samples: dict[str, Any]) -> None:
    rows = {labels["kind"]: value for labels, value in samples["slipstream:engine_rows_total"]}
    assert {labels["mode"] for labels, _ in samples["slipstream:engine_rows_total"]} == {"eager"}
    assert rows["prompt"] > 0 and rows["decode"] > 0 and rows["padding"] == 0
    assert rows["verify"] == total(samples, "slipstream:spec_decode_num_verified_tokens_total")
    assert rows["prompt"] + rows["decode"] + rows["verify"] == total(samples, "vllm:iteration_tokens_total_sum")
    assert total(samples, "slipstream:step_duration_seconds_count") == total(samples, "slipstream:engine_steps_total")


def test_budgets_and_what_is_used_of_them(samples: dict[str, Any]) -> None:
    assert total(samples, "slipstream:target_budget_rows") == 64
    assert total(samples, "slipstream:target_budget_rows_used") == 0, "at rest"
    assert {"slipstream:draft_capacity_rows", "slipstream:draft_capacity_rows_used"} <= set(samples)


def test_P15_switch_offs_are_labelled(samples: dict[str, Any]) -> None:
    reasons = {labels["reason"]: value for labels, value in samples["slipstream:spec_disabled_total"]}
    assert set(reasons) == {"position_limit", "cost", "load", "draft_capacity", "kv_blocks", "drafter_failed"}
    assert reasons.pop("position_limit") > 0 and set(reasons.values()) == {0.0}


def test_M10_a_drafter_that_is_never_right_shows_a_length_of_one(start_server: Starter) -> None:
    server = start_server(num_speculative_tokens=3, make_drafter=wrong)
    post(server, "/v1/completions", completion(prompt="hello world", max_tokens=60, seed=1, ignore_eos=True))
    found = metrics_of(server)
    assert total(found, "slipstream:spec_decode_num_verified_tokens_total") > 0
    assert total(found, "slipstream:spec_decode_num_accepted_tokens_total") == 0
    assert total(found, "slipstream:spec_decode_mean_acceptance_length") == 1.0


def test_requests_of_several_choices(samples: dict[str, Any]) -> None:
    assert total(samples, "vllm:request_max_num_generation_tokens_count") == 2
    assert total(samples, "vllm:request_max_num_generation_tokens_sum") == 180
    assert total(samples, "vllm:request_generation_tokens_count") == 3
    assert total(samples, "vllm:request_num_preemptions_sum") == 0
    assert total(samples, "vllm:prompt_tokens_cached_by_source_total") == total(
        samples, "vllm:prompt_tokens_cached_total"
    )


def test_the_server_says_how_it_is(samples: dict[str, Any]) -> None:
    assert (total(samples, "slipstream:healthy"), total(samples, "slipstream:ready")) == (1, 1)
    assert total(samples, "slipstream:backlog_requests") == total(samples, "slipstream:backlog_tokens") == 0
    assert "slipstream:step_running_seconds" in samples and "process_resident_memory_bytes" not in samples


@pytest.mark.parametrize("edges", [buckets.FIRST_TOKEN, buckets.TOKEN_GAP, buckets.STEP])
def test_buckets_reach_below_ten_milliseconds(edges: tuple[float, ...]) -> None:
    assert list(edges) == sorted(set(edges)) and sum(edge < 0.01 for edge in edges) >= 5


def test_buckets_of_token_counts() -> None:
    assert buckets.token_counts(60) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def refitted(num_steps: int = 20) -> CostRefitter:
    table = CostTable(Provenance("m", "n"), {StepMode.EAGER: Grid((1.0, 64.0), (0.0,), ((10.0,), (10.0,)))})
    refitter = CostRefitter(table, lambda table: None)
    for step in range(num_steps):
        plan = StepPlan(step, [ScheduledRequest("r", 0, 10, 1, 0, -1, False, True, 0, 0, ())], num_target_rows=1)
        refitter.observe(plan, StepResult(step, [RequestResult("r", 0, [1])], target_ms=11.0))
    return refitter


def page_of(
    start_server: Starter, refitter: CostRefitter | None = None
) -> dict[str, list[tuple[dict[str, str], float]]]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(start_server(num_speculative_tokens=2).engine, NAME, refitter))
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_predicted_and_measured_times(start_server: Starter) -> None:
    found = page_of(start_server, refitted())
    ((labels, predicted),) = found["slipstream:pass_predicted_seconds_total"]
    assert labels == {"model_name": NAME, "engine": "0", "pass": "target", "mode": "eager"}
    assert predicted == pytest.approx(0.2) and total(found, "slipstream:pass_measured_seconds_total") == pytest.approx(
        0.22
    )
    assert total(found, "slipstream:passes_total") == total(found, "slipstream:pass_time_ratio_count") == 20
    inside = {labels["le"]: value for labels, value in found["slipstream:pass_time_ratio_bucket"]}
    assert (inside["1.05"], inside["1.1"], inside["+Inf"]) in ((0, 20, 20), (0, 0, 20))


def test_confidences_appear_once_a_drafter_gives_some(start_server: Starter) -> None:
    server = start_server(num_speculative_tokens=2)
    registry = CollectorRegistry()
    registry.register(EngineCollector(server.engine, NAME))
    assert b"spec_calibration_judged_total{" not in generate_latest(registry)
    entry = ScheduledRequest("r", 0, 10, 3, 2, 0, False, True, 2, 2, ())
    for step, confidences in enumerate([[0.95, 0.35], None]):
        outcome = RequestResult("r", 0, [1, 1], 2, 1, 0 if confidences is None else 2, confidences)
        server.engine.observers(StepPlan(step, [entry]), StepResult(step, [outcome]))
    page = generate_latest(registry).decode()
    for position, bin_, accepted in (("0", "0.9", "1.0"), ("1", "0.3", "0.0")):
        labels = f'{{bin="{bin_}",engine="0",model_name="{NAME}",position="{position}"}}'
        lines = [line for line in page.splitlines() if "accepted_total{" in line and f'bin="{bin_}"' in line]
        assert len(lines) == 1 and lines[0].endswith(accepted) and f'position="{position}"' in lines[0], labels


def test_a_subject_that_fails_costs_its_own_metrics_only(
    start_server: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(num_speculative_tokens=2)
    server.engine.scheduler.statistics.steps = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        found = metrics_of(server)
    assert "slipstream:engine_rows_total" not in found and "vllm:num_requests_running" in found
    assert "vllm:spec_decode_num_drafts_total" in found and "could not be read" in caplog.text


def test_every_metric_is_documented_and_every_documented_one_exists(
    start_server: Starter, samples: dict[str, Any]
) -> None:
    there = set(samples) | set(page_of(start_server, refitted()))
    named = set(re.findall(r"`((?:vllm|slipstream):[a-z0-9_]+)", DOCUMENT.read_text(encoding="utf-8")))
    families = {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in there if not name.endswith("_created") and ":" in name
    }
    assert families - named == set(), "not documented"
    absent = set(re.findall(r"^\| `(vllm:[a-z0-9_]+)` \| absent", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
    only_with = {
        "slipstream:cost_table_version",
        "slipstream:drafter_failures_total",
        "slipstream:spec_calibration_judged_total",
        "slipstream:spec_calibration_accepted_total",
        "slipstream:spec_calibration_confidence_total",
        "slipstream:spec_calibration_calibrated_total",
    }
    assert named - families - absent - only_with == set(), "documented, but never there"
    assert absent and not absent & families


def test_metrics_stay_readable_while_the_engine_works(start_server: Starter) -> None:
    server = start_server(num_speculative_tokens=3, max_num_seqs=8)
    threads = [
        threading.Thread(target=lambda: post(server, "/v1/completions", completion(max_tokens=24, n=2)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert httpx.get(f"{server.url}/metrics", timeout=30).status_code == 200
    assert total(metrics_of(server), "vllm:generation_tokens_total") > 0
