"""`slipstream explain`: each limit that can bind is named for the request it bound, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver import drive, make_config, make_request

from slipstream.cli import main
from slipstream.config import SchedulerConfig, SettingError
from slipstream.lab.explain import StepExplanation, explain_step, resolve_step
from slipstream.lab.explain_command import names_length, shortened
from slipstream.lab.explain_requests import RequestNote
from slipstream.request import Request
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepMode
from slipstream.simulation.drafters import oracle, predict_with
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import RecordedScheduler, Recorder
from slipstream.simulation.recording import Planned, Recording
from slipstream.simulation.recording_reader import read_recording
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

LOGITS = HashedLogits(16, seed=3, window=1, scale=2.0)


def record(
    tmp_path: Path, config: SchedulerConfig, requests: list[Request], *, lag: int = 0, costs: CostTable | None = None
) -> Recording:
    """Serve requests with a drafter that is always right."""
    path = tmp_path / "run.jsonl.gz"
    recorder = Recorder(RecordTo(path), config, clock=lambda: 1.0, model="scripted")
    executor = ScriptedExecutor(
        LOGITS,
        num_kv_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        drafter=oracle(LAYOUTS[config.layout_name], predict_with(LOGITS), 16),
        max_model_len=config.max_model_len,
    )
    drive(RecordedScheduler(config, recorder, costs=costs), executor, requests, lag=lag)
    recorder.close()
    return read_recording(path)


def requests(count: int, prompt: int, output: int) -> list[Request]:
    return [make_request(f"r{n}", [n % 16] * prompt, output) for n in range(count)]


def explained(recording: Recording) -> list[StepExplanation]:
    return [explain_step(recording, step) for step in range(recording.num_steps)]


def whys(explanations: list[StepExplanation], start: str = "") -> str:
    return "\n".join(f"{n.got}: {n.why}" for e in explanations for n in e.requests if n.state.startswith(start))


def test_every_request_of_every_step_has_its_line(tmp_path: Path) -> None:
    config = make_config(max_num_seqs=3, layout_name="dspark", num_speculative_tokens=5)
    recording = record(tmp_path, config, requests(5, 20, 30))
    plans = {e.plan.step: e.plan for e in recording.events if isinstance(e, Planned) and e.plan.requests}
    for step, explanation in enumerate(explained(recording)):
        names = [note.request_id for note in explanation.requests]
        assert len(set(names)) == len(names)
        assert names[: len(plans[step].requests)] == [entry.request_id for entry in plans[step].requests]
        assert all(note.why for note in explanation.requests)
        assert not any("differently" in sentence for sentence in explanation.sentences)


def test_seats_and_the_rows_of_a_step(tmp_path: Path) -> None:
    config = make_config(max_num_seqs=2, max_num_batched_tokens=32, layout_name="dspark", num_speculative_tokens=5)
    steps = explained(record(tmp_path, config, requests(4, 40, 12)))
    first = {note.request_id: note for note in steps[0].requests}
    assert first["r0"].got == "32 prompt rows" and "rows ended here" in first["r0"].why
    assert first["r1"].got == "nothing" and "used up before its turn" in first["r1"].why
    assert "Those before it" in first["r3"].why
    assert "No seat is free: 2 of S = 2 run." in whys(steps, "waiting")
    assert "all verified" in whys(steps, "decoding")
    assert "a draft for the last saves nothing" in whys(steps, "decoding")
    short = explained(record(tmp_path, config, requests(1, 4, 2)))
    assert "this step's token is its last" in whys(short, "decoding")


def test_drafts_that_yield_to_prompts(tmp_path: Path) -> None:
    config = make_config(
        max_num_seqs=6, max_num_batched_tokens=16, layout_name="dspark", num_speculative_tokens=5, min_prefill_tokens=8
    )
    steps = explained(record(tmp_path, config, requests(8, 30, 40)))
    sentences = "\n".join(sentence for step in steps for sentence in step.sentences)
    assert "Prompts are promised min_prefill_tokens = 8" in sentences
    assert "they gave up their rows. The others were chosen turn by turn" in sentences
    assert "as rows were given in turn" in whys(steps, "decoding")


def test_the_shared_budget_is_explained_as_such(tmp_path: Path) -> None:
    config = make_config(
        max_num_seqs=6, max_num_batched_tokens=28, layout_name="dspark", num_speculative_tokens=5, draft_budget="shared"
    )
    steps = explained(record(tmp_path, config, requests(8, 10, 40)))
    sentences = "\n".join(sentence for step in steps for sentence in step.sentences)
    assert "Budget: shared" in sentences and "4 of the B rows reserved" in sentences
    assert "rows ran out after" in whys(steps, "decoding")


def test_blocks_preemption_and_the_prefix_cache(tmp_path: Path) -> None:
    config = make_config(max_num_seqs=4, max_num_batched_tokens=32, block_size=4, num_kv_blocks=24, max_model_len=80)
    same = [make_request(f"r{n}", [1] * 20, 40) for n in range(5)]
    steps = explained(record(tmp_path, config, same))
    sentences = "\n".join(sentence for step in steps for sentence in step.sentences)
    assert "was preempted: blocks ran out" in sentences
    assert "Too few KV blocks: it needs" in whys(steps, "waiting")
    assert "Preempted in this step" in whys(steps, "waiting")
    assert "tokens came from the prefix cache" in whys(steps)
    assert "Nobody drafts: speculation is off." in sentences


def test_threshold_drafter_limits_and_lag(tmp_path: Path) -> None:
    config = make_config(
        max_num_seqs=4,
        max_num_batched_tokens=32,
        long_prefill_token_threshold=7,
        layout_name="dspark",
        num_speculative_tokens=4,
        draft_capacity=8,
        draft_max_model_len=40,
    )
    steps = explained(record(tmp_path, config, requests(4, 20, 40), lag=1))
    assert "long_prefill_token_threshold = 7" in whys(steps, "prompt")
    assert "D is short, and it is not its turn" in whys(steps)
    assert "would pass draft_max_model_len = 40" in whys(steps, "decoding")
    assert "at most at hand" in whys(steps, "decoding")


def test_held_back_prompts_and_predicted_costs(tmp_path: Path) -> None:
    """A burst waits for a step's worth of prompt; the rule's own words are repeated."""
    grid = Grid((1.0, 64.0), (0.0,), ((5.0,), (9.0,)))
    costs = CostTable(Provenance("m", "m"), {StepMode.EAGER: grid})
    config = make_config(max_num_seqs=2, max_num_batched_tokens=64, composition="burst", max_prompt_wait_s=5.0)
    waiting = [make_request(f"r{n}", [n] * 12, 10 + 15 * n) for n in range(4)]
    recording = record(tmp_path, config, waiting, costs=costs)
    steps = explained(recording)
    assert "Predicted by cost table version 0:" in "\n".join(steps[1].sentences)
    held = [step for step in steps if "Prompts were held back in this step" in whys([step], "waiting")]
    assert held and all("--composition burst" in "\n".join(step.sentences) for step in held)


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    recording = record(tmp_path, make_config(), requests(1, 4, 3))
    assert resolve_step(recording, "last") == recording.num_steps - 1
    for text in ("99", "-1", "x", ""):
        with pytest.raises(SettingError, match=f"from 0 to {recording.num_steps - 1}, or last; got"):
            resolve_step(recording, text)


def test_long_queues_are_shortened() -> None:
    notes = [RequestNote(f"r{n}", "waiting", "nothing", "No seat.") for n in range(9)]
    short = shortened([RequestNote("a", "decoding", "1 anchor", "x"), *notes])
    assert [note.request_id for note in short] == ["a", "r0", "…", "r8"] and short[2].state == "7 more"


def test_long_names_are_cut_where_they_differ() -> None:
    assert names_length(["a", "b"]) == 12
    assert names_length(["chatcmpl-12345/0#0", "chatcmpl-12345/0#1"]) == 18


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path, make_config(max_num_seqs=1), requests(2, 4, 3))
    path = str(tmp_path / "run.jsonl.gz")
    assert main(["explain", path, "--step", "last", "--request", "r1"]) == 0
    out = capsys.readouterr().out
    assert "Step 5 of 0 to 5" in out and "r1" in out and "r0 " not in out
    assert main(["explain", path, "--step", "0", "--request", "nobody"]) == 2
    assert "there are r0, r1" in capsys.readouterr().err
    assert main(["explain", path, "--step", "6"]) == 2
    assert "from 0 to 5" in capsys.readouterr().err
