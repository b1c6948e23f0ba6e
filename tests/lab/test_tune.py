"""`slipstream tune`: finds what brute force finds, keeps limits, is never worse than the start, says when it cannot."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipstream.bench.metrics import BenchResult, summarize
from slipstream.bench.records import Chunk, RequestRecord, RunRecord
from slipstream.cli import build_parser, main
from slipstream.config import SchedulerConfig, SettingError
from slipstream.engine.flags import add_engine_arguments, settings_from_args
from slipstream.lab.scenario_file import load_scenario
from slipstream.lab.tune import tune
from slipstream.lab.tune_html import html_of
from slipstream.lab.tune_limits import Limit, limits_of, parse_duration_ms
from slipstream.lab.tune_plot import linear_ticks, log_ticks
from slipstream.lab.tune_report import TuneReport
from slipstream.lab.tune_result import Trial, Tuning, best_of
from slipstream.lab.tune_space import NAMES, Candidate, Space, space_around
from slipstream.lab.tune_subject import ScenarioSubject, scenario_subject

SCENARIO = """
title = "A small one"
[machine]
name = "gb300-v4.1-flash"
[scheduler]
max_num_batched_tokens = 32
max_num_seqs = 4
num_speculative_tokens = 3
composition = "mix"
verification = "fixed"
[acceptance]
mean = 2.5
[[workload]]
name = "w"
prompt_tokens = 30
output_tokens = 24
num_requests = 12
"""
SEARCH = (
    "num_speculative_tokens=0,1,3,5",
    "max_num_batched_tokens=2,16,32,64,128",
    "max_num_seqs=1,2,4,8,12",
    "composition=mix,cost",
    "verification=fixed",
)
SPACE_OF_ONE = dict.fromkeys(NAMES, (0,))
TPOT, TTFT = Limit("tpot", "p50", 3.2), Limit("ttft", "p99", 600.0)


@dataclass(frozen=True, slots=True)
class Remembering(ScenarioSubject):
    """A scenario whose runs are kept: settings are tuned many times here, and each is simulated once."""

    known: dict[Candidate, BenchResult] = dataclasses.field(default_factory=dict, compare=False)
    asked: list[Candidate] = dataclasses.field(default_factory=list, compare=False)

    def run(self, candidate: Candidate, case: int) -> BenchResult:
        self.asked.append(candidate)
        if candidate not in self.known:
            self.known[candidate] = ScenarioSubject.run(self, candidate, case)
        return self.known[candidate]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "small.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def subject(path: Path) -> Remembering:
    plain = scenario_subject(load_scenario(path))
    return Remembering(plain.scenario, plain.start)


@pytest.fixture(scope="module")
def space(subject: Remembering) -> Space:
    return space_around(subject.start, most_at_once=12, known_drafts=3, asked=SEARCH)


@pytest.fixture(scope="module")
def brute(subject: Remembering, space: Space) -> list[tuple[Candidate, BenchResult]]:
    """Every candidate that works, by loops of this test's own."""
    found = []
    for values in itertools.product(*(space.values[name] for name in NAMES)):
        candidate = Candidate(*values)
        if candidate.max_num_batched_tokens >= candidate.max_num_seqs:
            found.append((candidate, subject.run(candidate, 0)))
    return found


def highest(brute: list[tuple[Candidate, BenchResult]], *limits: Limit) -> float:
    kept = [result for _, result in brute if all(limit.miss(limit.value(result) or 0.0) <= 0 for limit in limits)]
    return max(result.output_throughput for result in kept)


@pytest.mark.parametrize("limits", [(), (TPOT,), (TPOT, TTFT)], ids=["none", "tpot", "both"])
@pytest.mark.parametrize("seed", range(4))
def test_finds_what_brute_force_finds(
    subject: Remembering, space: Space, brute: list[tuple[Candidate, BenchResult]], limits: tuple[Limit, ...], seed: int
) -> None:
    tuning = tune(subject, space, limits, num_trials=50, seed=seed)
    assert len(tuning.trials) == 50 and not tuning.is_exhaustive
    assert tuning.best.keeps_limits
    assert tuning.best.throughput >= 0.98 * highest(brute, *limits)
    assert highest(brute, *limits) > 1.1 * tuning.start.throughput
    assert not limits or highest(brute, *limits) < 0.9 * highest(brute)  # they bind


def test_limits_bind_only_where_they_cost(subject: Remembering, space: Space) -> None:
    free = tune(subject, space, (), num_trials=10**6)
    assert free.is_exhaustive
    assert free.best.candidate.max_num_batched_tokens == 128
    text = " ".join(TuneReport(subject, free, 0).verdict())
    assert "max_num_batched_tokens 128 is the largest that was tried" in text and "max_num_seqs" not in text
    bound = Limit("tpot", "p50", free.best.tpot_ms * 0.8)
    loose = Limit("ttft", "p99", 1e6)
    tuning = tune(subject, space, (bound, loose), num_trials=10**6)
    assert tuning.best.tpot_ms <= bound.bound and tuning.best.throughput < free.best.throughput
    assert tuning.without(1) is None
    without = tuning.without(0)
    assert without is not None and without.throughput == max(trial.throughput for trial in free.trials)
    sentences = TuneReport(subject, tuning, 0).verdict()
    assert any(re.match(r"--max-tpot-p50 .* it binds: without it \d+ tok/s", text) for text in sentences)
    assert any(text.startswith("--max-ttft-p99") and text.endswith("it does not bind.") for text in sentences)


def test_everything_is_simulated_once_and_nothing_that_cannot_work(subject: Remembering, space: Space) -> None:
    subject.asked.clear()
    tuning = tune(subject, space, (), num_trials=10**6)
    assert len(subject.asked) == len(set(subject.asked)) == len(tuning.trials)
    assert {refusal.candidate.max_num_batched_tokens for refusal in tuning.refusals} == {2}
    assert all("--max-num-batched-tokens" in refusal.reason for refusal in tuning.refusals)
    subject.asked.clear()
    tune(subject, space, (TPOT,), num_trials=40, seed=3)
    assert len(subject.asked) == len(set(subject.asked)) == 40


def test_a_seed_is_one_search(subject: Remembering, space: Space) -> None:
    def tried(seed: int) -> list[Candidate]:
        return [trial.candidate for trial in tune(subject, space, (TPOT,), num_trials=40, seed=seed).trials]

    assert tried(5) == tried(5)
    assert tried(5) != tried(6)


def test_workers_change_nothing(path: Path) -> None:
    plain = scenario_subject(load_scenario(path))
    space = space_around(plain.start, most_at_once=12, known_drafts=3, asked=SEARCH)
    one, two = (tune(plain, space, (TPOT,), num_trials=10, seed=1, workers=workers) for workers in (1, 2))
    assert one == two


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_trials", [1, 2, 5])
def test_never_worse_than_the_start(subject: Remembering, space: Space, seed: int, num_trials: int) -> None:
    tuning = tune(subject, space, (), num_trials=num_trials, seed=seed)
    assert tuning.start.candidate == subject.start
    assert tuning.best.throughput >= tuning.start.throughput
    assert len(tuning.trials) == num_trials


def trial(throughput: float, tpot_ms: float, *misses: float) -> Trial:
    """A trial with these figures; which settings they are of plays no part."""
    seconds = tpot_ms / 1e3
    record = RequestRecord(0, 0.0, 0.0, num_output_tokens=10, chunks=[Chunk(1.0, 1), Chunk(1.0 + 9 * seconds, 9)])
    result = summarize(RunRecord([record], 10 / throughput, []))
    return Trial(Candidate(0, 8, 1, "mix", "fixed"), (result,), misses)


def test_equal_throughputs_are_told_apart_by_tpot_but_never_below_the_start() -> None:
    start, faster, gentler = trial(1000, 20), trial(1004, 22), trial(1001, 12)
    assert best_of([start, faster, gentler]) is gentler
    assert best_of([start, faster, trial(999.5, 12)]) is start
    assert best_of([trial(1000, 20, 0.1), trial(500, 9, 0.0), trial(400, 5, -0.5)]).throughput == pytest.approx(500)
    assert best_of([trial(1000, 20, 0.3), trial(500, 9, 0.1), trial(400, 9, 0.2)]).throughput == pytest.approx(500)


def test_steps_that_cost_nothing_are_no_trouble(subject: Remembering) -> None:
    """Fitted tables may say so."""
    free, start = trial(1000, 0), trial(1000, 10)
    assert free.tpot_ms == 0.0 and best_of([start, free]) is free
    tuning = Tuning((TPOT,), Space(SPACE_OF_ONE), (start, free), (), False)
    assert "TPOT x 0," in " ".join(TuneReport(subject, tuning, 0).verdict())
    assert html_of(TuneReport(subject, tuning, 0)).count("<circle") > 2


def test_the_front_holds_what_nothing_beats() -> None:
    trials = (trial(100, 20), trial(50, 10), trial(40, 12), trial(60, 12), trial(100, 25), trial(200, 50, 1.0))
    front = Tuning((TPOT,), Space({}), trials, (), False).pareto
    assert [(round(t.throughput), round(t.tpot_ms)) for t in front] == [(50, 10), (60, 12), (100, 20)]


def test_impossible_limits_name_the_nearest_and_its_miss(
    path: Path, brute: list[tuple[Candidate, BenchResult]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ("num_speculative_tokens=5", "max_num_batched_tokens=64,128", "max_num_seqs=1,2", *SEARCH[3:])
    words = [word for text in search for word in ("--search", text)]
    limits = ["--max-tpot-p50", "1ms", "--trials", "50", "--workers", "1", "--json", str(tmp_path / "t.json")]
    assert main(["tune", str(path), *words, *limits]) == 1
    text = capsys.readouterr().out
    least = min(result.tpot_ms.median for _, result in brute if result.tpot_ms is not None)
    assert "No setting that was tried keeps the limits" in text
    assert f"({least - 1:.1%} too much)" in text
    written = json.loads((tmp_path / "t.json").read_text())
    assert not written["keeps_limits"]
    assert written["best"]["tpot_ms"] == pytest.approx(least)


def test_the_flags_are_those_of_serve_and_mean_the_best_settings(subject: Remembering, space: Space) -> None:
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    for candidate in (Candidate(4, 64, 8, "cost", "fixed"), Candidate(0, 16, 2, "mix", "fixed")):
        flags = " ".join(subject.flags(candidate)).replace('"dspark"', '"ngram"')  # any method that is served
        settings = settings_from_args(parser.parse_args(shlex.split(flags)), "m")
        got: SchedulerConfig = subject.config(candidate, 0)
        for name in ("max_num_batched_tokens", "max_num_seqs", "composition"):
            assert getattr(settings.scheduler, name) == getattr(got, name) == getattr(candidate, name)
        drafts = 0 if settings.speculative is None else settings.speculative.num_speculative_tokens
        assert drafts == got.num_speculative_tokens == candidate.num_speculative_tokens
        assert (settings.scheduler.cost_table == "profile") == candidate.weighs_costs


def test_a_scenario_without_costs_starts_from_what_it_comes_to(path: Path) -> None:
    loaded = load_scenario(path, ["cost_table=none", "composition=cost", "verification=confidence"])
    blind = scenario_subject(loaded)
    assert (blind.start.composition, blind.start.verification) == ("mix", "fixed")
    assert blind.scenario.simulation(blind.scenario.workloads[0], blind._variant(blind.start)).costs is None
    weighing = dataclasses.replace(blind.start, composition="cost")
    assert blind.scenario.simulation(blind.scenario.workloads[0], blind._variant(weighing)).costs is not None


def test_what_it_rests_on_is_said(path: Path, space: Space, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    command = ["tune", str(path), "--trials", "6", "--workers", "1", "--html", str(page), "--search"]
    assert main([*command, "num_speculative_tokens=8"]) == 0
    text = capsys.readouterr().out
    assert "modelled, not measured" in text and "gb300-v4.1-flash" in text and "chances given the drafts before" in text
    assert "beyond the scenario's K = 3 that is extrapolated" in text
    written = page.read_text(encoding="utf-8")
    assert "http" not in re.sub(r"https?://github\.com/\S+|http://www\.w3\.org/\S+", "", written)  # sources are named
    assert "<script" not in written and '<link rel="stylesheet' not in written
    assert written.count('<circle class="on-front"') >= 2 and "modelled, not measured" in written


def test_known_depths_of_acceptance(tmp_path: Path, path: Path) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text(SCENARIO.replace("mean = 2.5", "chances = [0.9, 0.8, 0.7, 0.6]"), encoding="utf-8")
    known = scenario_subject(load_scenario(deep))
    words = {k: " ".join(known.notes(dataclasses.replace(known.start, num_speculative_tokens=k))) for k in (4, 5)}
    assert "extrapolated" not in words[4]
    assert "K = 5 is extrapolated: drafts past the 4 known depths" in words[5]
    space = space_around(known.start, most_at_once=12, known_drafts=known.known_drafts)
    assert space.values["num_speculative_tokens"] == (0, 1, 2, 3, 4)  # no further, unless asked to


def test_several_workloads_are_weighed_together_and_the_worst_must_keep_limits(tmp_path: Path) -> None:
    two = tmp_path / "two.toml"
    two.write_text(
        SCENARIO + '[[workload]]\nname = "long"\nprompt_tokens = 200\noutput_tokens = 20\nnum_requests = 8\n',
        encoding="utf-8",
    )
    both = scenario_subject(load_scenario(two))
    space = space_around(both.start, most_at_once=12, known_drafts=3)
    (start,) = tune(both, space, (TTFT,), num_trials=1).trials
    first, second = (result.output_throughput for result in start.results)
    assert start.throughput == pytest.approx((first * second) ** 0.5)
    assert start.value(TTFT) == max(TTFT.value(result) or 0.0 for result in start.results)
    assert len(scenario_subject(load_scenario(two), workload="2").cases) == 1
    with pytest.raises(SettingError, match="it has 1: w; 2: long"):
        scenario_subject(load_scenario(two), workload="3")


def test_a_variant_must_be_named_where_there_are_several() -> None:
    public = load_scenario(Path(__file__).parents[2] / "scenarios" / "public-result.toml")
    with pytest.raises(SettingError, match="'before', 'after'; say with --variant"):
        scenario_subject(public)
    assert scenario_subject(public, "before").start == Candidate(5, 512, 64, "mix", "fixed")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "run.jsonl.gz"
    command = ["bench", "--scripted", "--num-prompts", "8", "--output-len", "24", "--no-progress"]
    speculative = '{"method": "forced", "layout": "dspark", "num_speculative_tokens": 4, "acceptance_length": 3.5}'
    sizes = ["--max-num-seqs", "2", "--max-num-batched-tokens", "40"]
    assert main([*command, *sizes, "--speculative-config", speculative, "--record", str(path)]) == 0
    return path


def test_a_recording_is_tuned_too(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = tmp_path / "t.json"
    search = ["--search", "max_num_seqs=2,8", "--search", "composition=mix", "--search", "num_speculative_tokens=0,2,4"]
    assert main(["tune", str(recording), "--trials", "12", "--workers", "1", *search, "--json", str(written)]) == 0
    text, found = capsys.readouterr().out, json.loads(written.read_text())
    assert "were measured" in text and "known for" in text
    drafts = {trial["settings"]["num_speculative_tokens"] for trial in found["trials"]}
    assert drafts == {0, 2, 4}  # 2 < 3.5 - 1: the forced length of the run does not stand in the way
    assert found["best"]["output_throughput"] >= found["start"]["output_throughput"]
    tokens = {trial["workloads"][0]["total_output_tokens"] for trial in found["trials"]}
    assert len(tokens) == 1


@pytest.mark.parametrize(
    ("text", "ms"), [("2s", 2000), ("20ms", 20), ("1.5 s", 1500), ("500us", 0.5), ("1min", 60000), (".5S", 500)]
)
def test_times_have_units(text: str, ms: float) -> None:
    assert parse_duration_ms(text) == pytest.approx(ms)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-ttft-p99", "2"], "'2' has no unit; write 2ms or 2s"),
        (["--max-ttft-p99", "fast"], "'fast' is no time above 0"),
        (["--max-ttft-p99", "-2s"], "no time above 0|expected one argument"),
        (["--max-tpot-p50", "0ms"], "must be above 0"),
        (["--max-tpot-p50", "3h"], "the unit 'h' is not known; use us, ms, s, min"),
        (["--max-tpot-p50", "nan"], "no time above 0"),
        (["--max-tpot-p95", "20ms"], "--max-tpot-p95"),
        (["--min-throughput", "lots"], "'lots' is no number of tokens per second"),
        (["--search", "max_num_sets=4"], "did you mean 'max_num_seqs'"),
        (["--search", "max_num_seqs=0"], "whole numbers from 1"),
        (["--search", "composition=mixed"], "did you mean 'mix'"),
        (["--search", "composition"], "NAME=A,B,C"),
        (["--trials", "0"], "--trials must be between 1"),
        (["--seed", "-1"], "--seed must be between 0"),
        (["--html", "/nowhere/at/all.html"], "there is no folder"),
    ],
)
def test_bad_words_are_refused_helpfully(
    path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["tune", str(path), *flags])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert re.search(message, capsys.readouterr().err)


def test_limits_come_from_their_flags() -> None:
    args = build_parser("tune").parse_args(
        ["tune", "x.toml", "--max-ttft-p99", "2s", "--max-tpot-p50", "20ms", "--min-throughput", "3000"]
    )
    limits = limits_of(args)
    assert limits == (Limit("ttft", "p99", 2000.0), Limit("tpot", "p50", 20.0), Limit(None, "mean", 3000.0))
    assert [limit.flag for limit in limits] == ["--max-ttft-p99", "--max-tpot-p50", "--min-throughput"]
    assert limits[2].miss(2400) == pytest.approx(0.2) and limits[0].miss(2200) == pytest.approx(0.1)


def test_what_has_no_tpot_is_refused(tmp_path: Path) -> None:
    single = tmp_path / "single.toml"
    single.write_text(SCENARIO.replace("output_tokens = 24", "output_tokens = 1"), encoding="utf-8")
    without = scenario_subject(load_scenario(single))
    space = space_around(without.start, most_at_once=12, known_drafts=3)
    with pytest.raises(SettingError, match="no request has a second token"):
        tune(without, space, (), num_trials=3)


def test_the_space_holds_the_start_and_no_seat_that_stays_empty(subject: Remembering) -> None:
    odd = dataclasses.replace(subject.start, max_num_batched_tokens=37, max_num_seqs=5, num_speculative_tokens=11)
    space = space_around(odd, most_at_once=9, known_drafts=3)
    assert space.places(odd) is not None
    assert (
        max(space.values["max_num_seqs"]) == 8
        and 11 in space.values["num_speculative_tokens"]
        and 37 in space.values["max_num_batched_tokens"]
    )
    odd = dataclasses.replace(odd, num_speculative_tokens=0)
    assert space_around(odd, most_at_once=9, known_drafts=0).values["num_speculative_tokens"] == (0,)
    places = space.places(odd.plain())
    assert places is not None and space.candidate(places) == odd.plain()


def _neighbours(space: Space, candidate: Candidate) -> Iterator[list[str]]:
    for other in space.neighbours(candidate):
        yield [name for name in NAMES if getattr(candidate, name) != getattr(other, name)]


def test_neighbours_differ_in_one_setting_or_in_both_budgets(space: Space) -> None:
    middle = Candidate(1, 32, 4, "mix", "fixed")
    changed = list(_neighbours(space, middle))
    assert len(changed) == 9
    assert all(len(names) == 1 or names == ["max_num_batched_tokens", "max_num_seqs"] for names in changed)


@pytest.mark.parametrize("most", [0.7, 3, 10, 990, 13178])
def test_ticks_are_round_and_reach(most: float) -> None:
    ticks = linear_ticks(most)
    assert ticks[0] == 0 and ticks[-2] < most <= ticks[-1] * (1 + 1e-9) and 3 <= len(ticks) <= 7
    low, *_, high = log_ticks(most / 30, most)
    assert low <= most / 30 * (1 + 1e-9) and high >= most * (1 - 1e-9)
