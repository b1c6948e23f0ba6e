"""`slipstream replay --set`: the model gives the recorded run back, and another one for other settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.config import SettingError, SpeculativeSettings
from slipstream.lab.fitted_costs import fit_costs
from slipstream.lab.modelled_run import Model, run_model
from slipstream.lab.recorded_steps import RecordedStep
from slipstream.lab.what_if import changed, outcome_of, replay_of
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import StepMode, StepPlan, StepResult
from slipstream.simulation.recorded_requests import recorded_parts
from slipstream.simulation.recording import Committed, Planned, Recording
from slipstream.simulation.recording_reader import read_recording
from slipstream.simulation.replay import first_divergence
from slipstream.simulation.trace_acceptance import TraceAcceptance

COMPARE = (
    *("compare", "--scripted", "--repeats", "2", "--num-prompts", "12", "--output-len", "48", "--no-progress"),
    *("--max-num-seqs", "6", "--max-num-batched-tokens", "40"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings: of the shared and of the separate budget, two repeats each."""
    path = tmp_path_factory.mktemp("recordings")
    assert main([*COMPARE, "--record", str(path / "run.jsonl.gz")]) == 0
    return path


@pytest.fixture(scope="module")
def recording(folder: Path) -> Recording:
    return read_recording(folder / "run.separate.jsonl.gz")


def test_compare_records_one_file_per_variant_with_its_parts(folder: Path, recording: Recording) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["run.separate.jsonl.gz", "run.shared.jsonl.gz"]
    parts = recorded_parts(recording)
    assert [part.mark and part.mark.name for part in parts] == ["warm-up", "run 1 of 2", "run 2 of 2"]
    assert [part.is_measured for part in parts] == [False, True, True]
    assert [len(part.requests) for part in parts] == [2, 12, 12]
    assert all(part.forgets_cache for part in parts)


def test_the_model_repeats_the_recorded_steps(recording: Recording) -> None:
    """All arrive at once and every draft's fate is known or drawn, so the model makes the very same steps; its times
    come from a fit to the run itself, whose sum is the run's."""
    outcome = outcome_of(recording, changed(recording.header, ["draft_budget=shared"]))
    assert outcome.recorded.steps is not None and outcome.modelled.steps is not None
    assert outcome.modelled.steps.total == pytest.approx(outcome.recorded.steps.total, rel=0.02)
    assert outcome.modelled.total_output_tokens == outcome.recorded.total_output_tokens
    assert outcome.modelled.output_throughput == pytest.approx(outcome.recorded.output_throughput, rel=0.1)


def test_a_chain_keeps_the_layout_that_was_recorded(recording: Recording) -> None:
    """The settings do not say it: it is that of a part, and of its checkpoint."""
    header = recording.header
    assert header.settings is not None
    chain = SpeculativeSettings(method="chain", drafters=("ngram", "dspark"), model="x", num_speculative_tokens=4)
    header = dataclasses.replace(
        header,
        settings=dataclasses.replace(header.settings, speculative=chain),
        config=dataclasses.replace(header.config, layout_name="dspark_fill_in"),
    )
    assert changed(header, ["max_num_seqs=4"]).config.layout_name == "dspark_fill_in"
    assert changed(header, ["method=none"]).config.num_speculative_tokens == 0


def test_other_settings_are_those_that_were_measured_under_them(folder: Path, recording: Recording) -> None:
    """The separate run, modelled with the shared budget, takes as many steps as the shared run did, and back."""
    shared = read_recording(folder / "run.shared.jsonl.gz")
    for one, other, text in ((recording, shared, "draft_budget=shared"), (shared, recording, "draft_budget=separate")):
        modelled = outcome_of(one, changed(one.header, [text])).modelled_change
        measured = outcome_of(other, changed(other.header, [text])).recorded
        assert modelled.steps is not None and measured.steps is not None
        assert modelled.steps.total == pytest.approx(measured.steps.total, rel=0.03)
        assert modelled.steps.running is not None and measured.steps.running is not None
        assert modelled.steps.running.peak == measured.steps.running.peak


def test_first_difference_and_no_difference(recording: Recording) -> None:
    change = changed(recording.header, ["draft_budget=shared"])
    found = first_divergence(recording, replay_of(recording, change), only_rows=True)
    assert found is not None and found.recorded is not None and found.replayed is not None
    assert found.recorded.num_target_rows > found.replayed.num_target_rows
    same = changed(recording.header, ["max_prompt_wait_s=3", "draft_budget=separate"])
    assert first_divergence(recording, replay_of(recording, same), only_rows=True) is None


def test_what_was_left_open_follows_the_change(recording: Recording) -> None:
    before = recording.header.config
    after = changed(recording.header, ["num_speculative_tokens=3", "block_size=32"]).config
    assert (after.num_speculative_tokens, after.draft_capacity) == (3, 18)
    assert after.num_kv_blocks * after.block_size == before.num_kv_blocks * before.block_size
    assert after.max_model_len == before.max_model_len


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("draft_budget", "takes NAME=VALUE"),
        ("nonsense=1", "--set: unknown setting 'nonsense'"),
        ("acceptance_length=3", "has no effect here"),
        ("cost_table=profile", "nothing can be measured here"),
        ("max_num_batched_tokens=2", "less than --max-num-seqs 6"),
    ],
)
def test_what_cannot_be_set_is_refused(recording: Recording, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        changed(recording.header, [text])


def test_closed_loops_stay_closed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    arguments = ["bench", "--scripted", "--num-prompts", "9", "--concurrency", "3", "--output-len", "20"]
    assert main([*arguments, "--no-progress", "--record", str(path)]) == 0
    recording = read_recording(path)
    header = recording.header
    parts = recorded_parts(recording)
    machine = CostTable(Provenance("m", "m"), {StepMode.EAGER: Grid((1.0,), (0.0,), ((10.0,),))})
    acceptance = TraceAcceptance([request for part in parts for request in part.requests])
    run = run_model(Model(header.config, header.config, machine, None, acceptance), parts)
    moments = sorted([(r.sent_time, 1) for r in run.requests] + [(r.end_time, -1) for r in run.requests])
    in_flight = peak = 0
    for _, change in moments:
        in_flight += change
        peak = max(peak, in_flight)
    assert peak == 3 and len(run.requests) == 9
    late = dataclasses.replace(header.config, max_num_seqs=1)
    slower = run_model(Model(late, header.config, machine, None, acceptance), parts)
    assert slower.duration_s > 2 * run.duration_s
    lagged = run_model(Model(header.config, header.config, machine, None, acceptance, commit_lag=1), parts)
    assert [r.num_output_tokens for r in lagged.requests] == [r.num_output_tokens for r in run.requests]


def test_a_fit_finds_the_line_it_was_made_from() -> None:
    steps = []
    for number in range(40):
        rows = 1 + number * 3 % 60
        plan = StepPlan(number, [], num_prefill_rows=rows, num_target_rows=rows)
        result = StepResult(number, [], num_target_rows=rows)
        steps.append(RecordedStep(Planned(0.0, plan), Committed(0.0, result), (4.0 + 0.5 * rows) / 1e3, True))
    table = fit_costs(steps, "m")
    for step in steps:
        assert table.target_ms(step.shape) == pytest.approx(1e3 * step.duration_s, rel=1e-6)
    with pytest.raises(SettingError, match="at least 8"):
        fit_costs(steps[:7], "m")


def test_the_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "run.separate.jsonl.gz")
    assert main(["replay", path]) == 0
    assert "are equal to the recorded ones" in capsys.readouterr().out
    assert main(["replay", path, "--set", "draft_budget=shared", "--no-progress"]) == 0
    out = capsys.readouterr().out
    assert "is the first that is planned differently" in out and "Modelled outcome" in out and "Assumed:" in out
    assert main(["replay", path, "--fit-costs"]) == 2
    assert main(["replay", path, "--set", "commit_lag=1", "--no-progress"]) == 0
    assert "none can be compared" in capsys.readouterr().out


def test_a_recording_that_lies_is_found_out(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import gzip

    lines = gzip.decompress((folder / "run.separate.jsonl.gz").read_bytes()).decode().splitlines()
    place = next(n for n, line in enumerate(lines) if '"event":"plan"' in line and '"step":40,' in line)
    plan = json.loads(lines[place])
    plan["requests"][0][8] -= 1
    lines[place] = json.dumps(plan)
    (tmp_path / "other.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["replay", str(tmp_path / "other.jsonl")]) == 1
    out = capsys.readouterr().out
    assert "Step 40 of" in out and "planned differently" in out
