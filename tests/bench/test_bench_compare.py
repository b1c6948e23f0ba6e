"""In-process runs and comparisons on the scripted target: who runs, what steps hold, whether the text is the same."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from slipstream.bench.arrivals import Arrivals, all_at_once, closed_loop
from slipstream.bench.compare import Comparison, differences_between, plain_texts, run_comparison
from slipstream.bench.in_process import BenchRequest, InProcessLoad
from slipstream.bench.metrics import summarize
from slipstream.bench.records import RunRecord
from slipstream.bench.systems import ScriptedFactory
from slipstream.bench.variation import known_settings, parse_variation, with_setting
from slipstream.config import CacheSettings, SchedulerSettings, SettingError, Settings, SpeculativeSettings
from slipstream.request import SamplingParams

FORCED = SpeculativeSettings(method="forced", layout="dspark", num_speculative_tokens=5, acceptance_length=4.72)
BASE = Settings(
    scheduler=SchedulerSettings(max_num_batched_tokens=64, max_num_seqs=8),
    cache=CacheSettings(enable_prefix_caching=False),
    speculative=FORCED,
)


def workload(count: int, prompt: int = 16, output: int = 64) -> list[BenchRequest]:
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    return [BenchRequest(tuple((3 * i + j) % 256 for j in range(prompt)), sampling, i) for i in range(count)]


def compare(text: str = "draft_budget=shared,separate", base: Settings = BASE, repeats: int = 2) -> Comparison:
    variation = parse_variation(text, base)
    return run_comparison(ScriptedFactory(), base, variation, workload(24), repeats=repeats, luck_seed=3)


def run_once(settings: Settings, requests: list[BenchRequest], arrivals: Arrivals) -> RunRecord:
    system = ScriptedFactory().build(settings, {}, 0)
    return InProcessLoad(system.engine, system.recorder).run(requests, arrivals)


@pytest.mark.parametrize("lag", [0, 1])
def test_separate_runs_more_requests_than_shared_and_gives_the_same_text(lag: int) -> None:
    comparison = compare(base=replace(BASE, scheduler=replace(BASE.scheduler, commit_lag=lag)))
    assert comparison.same_text
    assert comparison.num_left_plain == 0
    shared, separate = comparison.results
    assert len(shared) == len(separate) == 2
    for before, after in zip(shared, separate, strict=True):
        assert before.steps and before.steps.running and after.steps and after.steps.running
        assert after.steps.running.peak == 8
        assert before.steps.running.mean < after.steps.running.mean
        if lag == 0:  # at lag 1 a request that is about to end keeps its seat for a step without costing a row
            assert before.steps.running.peak < 8
        assert after.steps.total < before.steps.total
        assert after.total_output_tokens == before.total_output_tokens == 24 * 64


def run_forced(settings: Settings, requests: list[BenchRequest]) -> RunRecord:
    factory = ScriptedFactory()
    texts = plain_texts(factory, settings, requests, lambda count: None)
    system = factory.build(settings, texts, 3)
    return InProcessLoad(system.engine, system.recorder).run(requests, all_at_once(len(requests)))


@pytest.mark.parametrize("length", [4.72, 2.5, 1.0, 6.0])
def test_forced_length_comes_out_of_the_scheduler(length: float) -> None:
    settings = replace(BASE, speculative=replace(FORCED, acceptance_length=length))
    acceptance = run_forced(settings, workload(30, output=400)).acceptance
    assert acceptance is not None and acceptance.verified > 0
    assert acceptance.mean_length_full == pytest.approx(length, rel=0.02)


@pytest.mark.parametrize("budget", ["shared", "separate"])
def test_m7_output_is_first_tokens_and_accepted_and_bonus_tokens(budget: str) -> None:
    record = run_forced(with_setting(BASE, "draft_budget", budget), workload(24))
    assert record.acceptance is not None and record.acceptance.accepted > 0
    first = len(record.requests)
    bonus = sum(len(request.chunks) - 1 for request in record.requests)
    assert sum(request.num_output_tokens for request in record.requests) == first + record.acceptance.accepted + bonus


def test_in_process_chunks_hold_steps_and_every_token_has_a_time() -> None:
    record = run_once(replace(BASE, speculative=None), workload(5, output=9), all_at_once(5))
    result = summarize(record)
    assert result.tokens_per_chunk == 1.0
    assert result.token_time_ms is not None and result.token_time_ms.count == 5 * 8
    assert result.acceptance is not None and result.acceptance.verified == 0
    assert [request.num_prompt_tokens for request in record.requests] == [16] * 5
    assert sum(step.num_target_rows for step in record.steps) == 5 * (16 + 8)


def test_steps_are_told_apart_by_what_they_hold() -> None:
    record = run_once(replace(BASE, speculative=None), workload(9, prompt=60, output=5), all_at_once(9))
    kinds = {step.kind for step in record.steps}
    assert kinds == {"prefill", "mixed", "decode"}
    assert all((step.num_prefill_rows == 0) == (step.kind == "decode") for step in record.steps)
    assert max(step.num_running for step in record.steps) <= 8
    assert record.steps[0].num_waiting >= 7


def test_closed_loop_holds_the_engine_to_its_concurrency() -> None:
    record = run_once(replace(BASE, speculative=None), workload(7, output=12), closed_loop(7, 3))
    result = summarize(record)
    assert result.completed == 7
    assert result.in_flight.peak == 3
    assert max(step.num_running for step in record.steps) == 3


def test_open_loop_counts_waiting_from_release_not_from_the_step_after_it() -> None:
    system = ScriptedFactory().build(replace(BASE, speculative=None), {}, 0)
    slow = system.recorder.execute

    def execute(plan):  # type: ignore[no-untyped-def]
        time.sleep(0.02)
        return slow(plan)

    system.engine.executor = type("Slow", (), {"execute": staticmethod(execute)})()
    times = [0.0, 0.005]
    record = InProcessLoad(system.engine, system.recorder).run(workload(2, output=3), Arrivals("", times))
    assert [request.sent_time for request in record.requests] == times
    # The second one arrived during the first one's step and waited for its end, then for a step of its own.
    assert record.requests[1].chunks[0].time - 0.005 > 0.03


def test_refused_requests_are_recorded_and_the_others_served() -> None:
    requests = workload(3, output=4)
    requests[1] = BenchRequest(tuple([1] * 5000), requests[1].sampling)
    result = summarize(run_once(replace(BASE, speculative=None), requests, all_at_once(3)))
    assert (result.completed, result.failed) == (2, 1)
    assert "5000 tokens" in next(iter(result.failures))


def test_a_different_text_is_found_where_it_begins() -> None:
    left = run_once(replace(BASE, speculative=None), workload(3, output=6), all_at_once(3))
    right = run_once(replace(BASE, speculative=None), workload(3, output=6), all_at_once(3))
    assert differences_between(left, right, "x", 0) == []
    right.requests[1].token_ids[4] += 1
    right.requests[2].token_ids.pop()
    found = [(d.index, d.position) for d in differences_between(left, right, "x", 0)]
    assert found == [(1, 4), (2, 5)]


def test_any_setting_can_be_varied() -> None:
    comparison = compare("num_speculative_tokens=4,5,7", repeats=1)
    assert comparison.same_text
    assert len(comparison.results) == 3
    assert compare("method=none,forced", repeats=1).same_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft_budget", "NAME=A,B"),
        ("draft_budget=shared", "at least two"),
        ("draft_budget=shared,shared", "named twice"),
        ("colour=a,b", "unknown setting 'colour'; known are .*draft_budget"),
        ("max_num_seqs=8,many", "expected a number, got 'many'"),
        ("max_num_seqs=8,4.5", "expected a number, got '4.5'"),
        ("enable_prefix_caching=true,maybe", "true or false"),
        ("method=ngram,eagle9", "'eagle9' is not available"),
    ],
)
def test_bad_variations_are_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        parse_variation(text, BASE)


def test_speculation_must_be_on_to_vary_it() -> None:
    with pytest.raises(SettingError, match="speculation is off"):
        parse_variation("num_speculative_tokens=3,4", replace(BASE, speculative=None))


def test_values_take_the_type_of_their_setting() -> None:
    assert with_setting(BASE, "draft_capacity", "none").scheduler.draft_capacity is None
    assert with_setting(BASE, "draft_capacity", "9").scheduler.draft_capacity == 9
    assert with_setting(BASE, "enable_prefix_caching", "True").cache.enable_prefix_caching is True
    assert with_setting(BASE, "priority_ageing_s", "1").scheduler.priority_ageing_s == 1.0
    changed = with_setting(BASE, "acceptance_length", "3").speculative
    assert changed is not None and changed.acceptance_length == 3.0
    assert {"draft_budget", "block_size", "layout"} <= set(known_settings())
