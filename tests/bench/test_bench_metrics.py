"""Latency, throughput and acceptance by numbers worked out by hand."""

from __future__ import annotations

import copy

import pytest

from slipstream.bench.acceptance import Acceptance, acceptance_between
from slipstream.bench.metrics import Distribution, chunk_gaps_ms, concurrency_of, summarize, summarize_steps, tpot_ms
from slipstream.bench.records import Chunk, RequestRecord, RunRecord, StepRecord
from slipstream.scheduler.statistics import SchedulerStatistics


def counted(*steps: tuple[int, int], drafted: int | None = None, num_ended: int = 0) -> Acceptance:
    """What a scheduler counts for decode steps of (verified, accepted) drafts, after others before them; so many of
    them were ended by an accepted draft."""
    statistics = SchedulerStatistics.for_drafts(5)

    def count(verified: int, accepted: int) -> None:
        statistics.num_decode_tokens += accepted + 1
        statistics.draft_lengths[verified] += 1
        statistics.acceptance_histogram[verified][accepted] += 1

    count(2, 1)
    count(4, 4)
    before = copy.deepcopy(statistics)
    for verified, accepted in steps:
        count(verified, accepted)
    statistics.num_decode_tokens -= num_ended
    if drafted is not None:
        statistics.draft_lengths[1] += drafted - (statistics.num_drafted_tokens - before.num_drafted_tokens)
    acceptance = acceptance_between(before, statistics)
    assert acceptance is not None
    return acceptance


def step(kind: str, start: float, duration: float, running: int, rows: int = 4) -> StepRecord:
    return StepRecord(kind, "eager", start, duration, running, 0, rows, 0, 0, 0, 1.0, 0.5)


def test_m3_ragged_verification_is_counted_as_offered() -> None:
    acceptance = counted((3, 2), (1, 1), (0, 0), (3, 0))
    assert (acceptance.drafted, acceptance.verified, acceptance.accepted) == (7, 7, 3)
    assert acceptance.rate == pytest.approx(3 / 7)
    assert acceptance.mean_length == pytest.approx(2.0)
    assert acceptance.tokens_per_decode_step == pytest.approx(1.75)


def test_m2_m5_rate_divides_by_what_was_verified_not_by_drafts_made() -> None:
    trimmed = counted((2, 2), (0, 0), drafted=10)
    assert (trimmed.drafted, trimmed.verified, trimmed.accepted) == (10, 2, 2)
    assert trimmed.rate == 1.0
    assert trimmed.mean_length == 3.0
    assert trimmed.tokens_per_decode_step == 2.0


def test_m4_histogram_by_draft_length_tells_budgets_apart() -> None:
    first = counted((1, 1), (3, 2))
    second = counted((2, 1), (2, 2))
    assert first.histogram == {1: (0, 1), 3: (0, 0, 1, 0)}
    assert second.histogram == {2: (0, 1, 1)}
    assert (first.verified, first.accepted) == (second.verified, second.accepted)


def test_per_position_rates_over_all_steps_and_over_steps_that_verified_there() -> None:
    acceptance = counted((3, 3), (1, 1), (3, 0), (2, 1))
    assert acceptance.accepted_by_position == (3, 1, 1)
    assert acceptance.rate_by_position == (0.75, 0.25, 0.25)
    assert acceptance.rate_by_position_verified == (0.75, pytest.approx(1 / 3), 0.5)
    assert acceptance.mean_length_full == 2.5  # the two steps of three drafts: 4 and 1 tokens


def test_a_step_that_an_accepted_draft_ended_has_no_token_after_it() -> None:
    assert counted((3, 2), (3, 3), num_ended=1).tokens_per_decode_step == 3.0
    assert counted((3, 2), (3, 3)).tokens_per_decode_step == 3.5


def test_of_trimmed_steps_those_count_for_a_draft_that_verified_it_and_had_all_before_accepted() -> None:
    """100 steps, draft 1 accepted in 80; draft 2 verified in 50 of all, of which 40 had draft 1 accepted, 10 both."""
    acceptance = counted(*[(1, 1)] * 40, *[(1, 0)] * 10, *[(2, 0)] * 10, *[(2, 1)] * 30, *[(2, 2)] * 10)
    assert acceptance.rate_by_position_reached == (0.8, 0.25)
    assert acceptance.rate_by_position_verified == (0.8, 0.2)
    assert counted((2, 0)).rate_by_position_reached == (0.0, None)
    assert counted((0, 0)).rate_by_position_reached == ()


def test_nothing_verified_gives_no_verdict() -> None:
    acceptance = counted((0, 0))
    assert acceptance.rate is None
    assert acceptance.mean_length is None
    assert acceptance.tokens_per_decode_step == 1.0


def test_distribution() -> None:
    distribution = Distribution.of([1.0, 2.0, 3.0, 4.0])
    assert distribution == Distribution(4, 2.5, 2.5, pytest.approx(1.25**0.5), pytest.approx(3.7), pytest.approx(3.97))
    assert Distribution.of([]) is None


def test_concurrency_is_exact_and_back_to_back_requests_do_not_overlap() -> None:
    # Buckets of a second would see three requests in the first one.
    concurrency = concurrency_of([(0.0, 0.4), (0.4, 0.6), (0.5, 1.0)])
    assert concurrency.peak == 2
    assert concurrency.mean == pytest.approx(1.1)
    assert concurrency_of([]).peak == 0


def test_steps_by_kind_and_running_weighted_by_time() -> None:
    summary = summarize_steps([step("mixed", 0.0, 0.3, 2), step("decode", 0.3, 0.1, 6), step("decode", 0.4, 0.1, 6)])
    assert summary is not None and summary.running is not None
    assert summary.counts == {"mixed": 1, "decode": 2}
    assert summary.share("mixed") == pytest.approx(1 / 3)
    assert summary.mean_ms("mixed") == pytest.approx(300.0)
    assert summary.mean_ms("prefill") is None
    assert summary.running.peak == 6
    assert summary.running.mean == pytest.approx((2 * 0.3 + 6 * 0.2) / 0.5)


def test_token_time_and_chunk_gap_are_different_things() -> None:
    request = RequestRecord(0, 0.0, 0.0, 5, 7, [Chunk(0.1, 1), Chunk(0.14, 4), Chunk(0.16, 2)])
    assert chunk_gaps_ms(request) == pytest.approx([40.0, 20.0])
    assert tpot_ms(request) == pytest.approx(10.0)
    result = summarize(RunRecord([request], 0.16))
    assert result.token_time_ms is not None and result.token_time_ms.count == 6
    assert result.token_time_ms.mean == pytest.approx(10.0)
    assert result.tokens_per_chunk == pytest.approx(3.0)


def test_failed_requests_are_counted_and_in_no_latency() -> None:
    good = RequestRecord(0, 0.0, 0.5, 3, 2, [Chunk(1.0), Chunk(2.0)])
    bad = RequestRecord(1, 0.0, 0.0, error="HTTP 500: no")
    result = summarize(RunRecord([good, bad], 2.0))
    assert (result.completed, result.failed) == (1, 1)
    assert result.failures == {"HTTP 500: no": 1}
    assert result.output_throughput == 1.0
    assert result.ttft_ms is not None and result.ttft_ms.median == pytest.approx(500.0)
    assert result.client_queue_ms is not None and result.client_queue_ms.mean == pytest.approx(500.0)
    assert result.in_flight.peak == 1


def test_a_single_token_has_no_tpot() -> None:
    result = summarize(RunRecord([RequestRecord(0, 0.0, 0.0, 3, 1, [Chunk(1.0)])], 1.0))
    assert result.tpot_ms is None
    assert result.to_json()["median_tpot_ms"] is None
    assert result.to_json()["median_e2el_ms"] == pytest.approx(1000.0)
