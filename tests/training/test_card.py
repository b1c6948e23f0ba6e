"""The model card says what is given, with the command of each figure, and nothing else."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.tiny_models import write_tiny_hf_model
from speculation.test_choice import NAME, ship
from speculation.tiny_drafters import tiny_drafter_config
from training.training_rig import tiny_dialogues

from slipstream.cli import main
from slipstream.models.loading import open_model
from slipstream.speculation.drafter_config import TargetIdentity
from slipstream.training.card import write_card
from slipstream.training.corpus import CorpusFolder, Dialogue
from slipstream.training.run_record import DialogueCount, RunRecord, count_by, dropped_in, read_run, training_time

RECIPE = {
    "data": {
        "kinds": {"chat": 0.75, "elsewhere/own|file.jsonl": 0.25},
        "temperatures": {"0.0": 0.5, "1.0": 0.5},
        "max_prompt_tokens": 320,
        "max_answer_tokens": 224,
    },
    "drafter": {"from_layers": [1, 2]},
    "train": {
        "num_steps": 300, "num_sequences": 8, "num_anchors": 64, "learning_rate": 6e-4, "seed": 1, "max_context": 1024,
        "loss": {"cross_entropy": 0.1, "l1": 0.9, "kl": 0.0, "confidence": 1.0, "decay": 4.0},
    },
}  # fmt: skip
HELD_OUT = {"step": 300, "num_blocks": 77, "greedy_length": 2.5, "sampled_length": 2.25, "match": [0.7, 0.6],
            "overlap": [0.65, 0.55]}  # fmt: skip
BEFORE = {"mean_error": 0.2, "mean_area": 0.811, "mean_brier": 0.19, "num_events": [50]}
AFTER = BEFORE | {"mean_error": 0.0123, "mean_brier": 0.17}
RECORD: dict[str, Any] = {
    "recipe": RECIPE,
    "num_dialogues": 40,
    "num_tokens": 900,
    "num_answer_tokens": 500,
    "steps": 300,
    "held_out": HELD_OUT,
    "calibration": [{"temperature": 0.0, "num_fitted": 60, "before": BEFORE, "after": AFTER}],
    "calibrated_by": "slipstream calibrate build/x",
}
SET = {
    "name": "first", "temperature": 0.0, "concurrency": 1, "method": "dspark", "num_prompts": 12, "num_loops": 3,
    "acceptance_length": 2.345, "tokens_per_s": 101.0, "plain_tokens_per_s": 50.0, "speed_up": 2.02,
    "conditional": [0.8, None], "cumulative": [0.8, 0.0],
}  # fmt: skip
MEAN = {
    "temperature": 0.0,
    "concurrency": 1,
    "method": "dspark",
    "num_sets": 3,
    "acceptance_length": 2.2,
    "speed_up": 1.9,
}
EVALUATION = {
    "command": "slipstream evaluate build/x --json e",
    "model": "tiny, float32 on cpu",
    "as_served": False,
    "max_tokens": 256,
    "sets": [SET, SET | {"concurrency": 16, "speed_up": 0.97}],
    "means": [MEAN, MEAN | {"num_sets": 1, "speed_up": 7.77}],
}
RUN = RunRecord(
    kinds=[DialogueCount("chat", 30, 700, 400), DialogueCount("own|file", 10, 200, 100)],
    temperatures=[DialogueCount("0", 21, 400, 210)],
    num_begun=48,
    dropped={"looping": 9, "short": 0},
    training=timedelta(hours=1, minutes=32),
)


def card(record: dict[str, Any], **given: Any) -> str:
    return write_card(tiny_drafter_config(training=record, target=TargetIdentity(name="tiny")), **given)


def test_everything_that_is_given_is_in_the_card_beside_its_command() -> None:
    text = card(RECORD, run=RUN, evaluations=[EVALUATION], licence="Apache-2.0", notes=["own is MIT."])
    for line in (
        "license: apache-2.0",
        "# tiny-dspark",
        "| chat | 0.75 | 30 | 700 | 400 |",
        r"| own\|file | 0.25 | 10 | 200 | 100 |",
        "| 0 | 0.5 | 21 | 400 | 210 |",
        "| 1 | 0.5 | 0 | 0 | 0 |",
        "* 48 dialogues were begun, and 40 kept.",
        "* answers cut at a loop: 9",
        "* 300 of 300 steps of 8 dialogues and up to 64 blocks of each: 153600 blocks at most.",
        "* Loss: cross-entropy 0.1, l1 0.9, confidence 1; draft k weighs exp(-k / 4), k from 0.",
        "* First weights: copies of target layers 1, 2.",
        "* Time of the steps and of held-out measuring, by the run's log: 1 h 32 min.",
        "| likeliest tokens, T = 0 | 2.500 | 0.700 | 0.600 |",
        "slipstream evaluate build/x --json e",
        "| first | 0 | 1 | dspark | 2.35 | 101.0 | 50.0 | 2.02 | 3 of 12 |",
        "| first | 0 | 16 | dspark | 2.35 | 101.0 | 50.0 | 0.97 | 3 of 12 |",
        "| mean of 3 sets | 0 | 1 | dspark | 2.20 | | | 1.90 | |",
        "| first | 0 | 1 | dspark | 0.800 / 0.800 | – / 0.000 |",
        "slipstream calibrate build/x",
        "| 0 | 60 | 50 | 0.2000 | 0.0123 | 0.811 | 0.811 | 0.1900 | 0.1700 |",
        "* Prompts of the file `own|file.jsonl` were used.",
        "* own is MIT.",
    ):
        assert line in text.splitlines(), line
    assert "7.77" not in text, "a mean of one set is that set"
    assert "copies of its layers; they come under Apache-2.0" in text and "elsewhere" not in text


def test_what_drafts_do_to_texts_is_said_of_both_rules() -> None:
    first = card({}).split("# tiny-dspark")[1].split("## Use")[0]
    assert "never a\ntext, or under the textbook rejection rule never a text's law." in first


def test_what_is_not_given_is_not_in_the_card() -> None:
    text = card({})
    assert text.count("Nothing is recorded.") == 2
    for word in ("Acceptance and speed", "## Confidence", "Licence", "license", "ECE", "Held-out", "loop"):
        assert word not in text
    without_run = card(RECORD)
    assert "| chat | 0.75 |" in without_run.splitlines()
    assert "begun" not in without_run and "by the run's log" not in without_run


def test_drops_are_summed_over_the_processes_that_made_the_data() -> None:
    counts = [(5, 1), (9, 3), (2, 0), (4, 4)]  # the third line begins anew
    lines = [json.dumps({"file": i, "dropped_so_far": {"looping": a, "short": b}}) for i, (a, b) in enumerate(counts)]
    assert dropped_in(lines) == {"looping": 13, "short": 7}
    assert dropped_in([]) == {}


def test_training_time_leaves_out_what_lies_between_two_calls() -> None:
    lines = [
        "2026-01-01 10:00:00 Dialogues: 6 of 6",
        "2026-01-01 10:20:00 6 dialogues, 70 tokens",
        "2026-01-01 10:20:30 Training: 9 of 90, loss 1.000",
        "2026-01-01 10:21:30 step 20: held-out acceptance length 2.0",
        "2026-01-01 15:00:00 6 dialogues, 70 tokens",
        "2026-01-01 15:01:00 Training: 30 of 90, loss 1.000",
        "broken",
        "2026-01-01 15:02:00 Training: 90 of 90",
        "2026-01-01 15:05:00 Drafter: somewhere",
    ]
    assert training_time(lines) == timedelta(minutes=3, seconds=30)
    assert training_time(lines[:2]) is None


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    corpus = CorpusFolder(tmp_path / "data")
    dialogues = tiny_dialogues(5)
    corpus.write(0, dialogues[:3])
    corpus.write(1, [Dialogue(d.token_ids, np.zeros(len(d), bool), "other", 0.7) for d in dialogues[3:]])
    (tmp_path / "data" / "settings.json").write_text(json.dumps({"num_per_file": 4}))
    found = read_run(tmp_path, [tmp_path / "data"])
    assert [(count.name, count.num_dialogues) for count in found.kinds] == [("other", 2), ("test", 3)]
    assert [count.name for count in found.temperatures] == ["0.7", "1"] and found.num_begun == 8
    assert found.kinds[0].num_answer_tokens == 0 < found.kinds[1].num_answer_tokens < found.kinds[1].num_tokens
    assert found.training is None and found.dropped == {}
    log = tmp_path / "data" / "log.jsonl"
    log.write_text(json.dumps({"file": 0, "dropped_so_far": {"short": 3}}) + "\n")
    both = read_run(None, [tmp_path / "data", tmp_path / "data"])
    assert [(count.name, count.num_dialogues) for count in both.kinds] == [("other", 4), ("test", 6)]
    assert both.num_begun == 16 and both.dropped == {"short": 6}
    (tmp_path / "more").mkdir()
    CorpusFolder(tmp_path / "more").write(0, dialogues[:1])
    assert read_run(None, [tmp_path / "data", tmp_path / "more"]).num_begun is None
    assert sum(count.num_tokens for count in count_by(dialogues, lambda d: d.kind)) == sum(map(len, dialogues))


def test_the_command_writes_it_beside_the_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = ship(tmp_path, open_model(str(write_tiny_hf_model(tmp_path / "models" / "tiny")), progress=False)) / NAME
    evaluation = tmp_path / "e.json"
    evaluation.write_text(json.dumps(EVALUATION))
    assert main(["card", str(drafter), "--evaluation", str(evaluation), "--note", "a note"]) == 0
    written = (drafter / "README.md").read_text()
    assert EVALUATION["command"] in written and "* a note" in written and "license" not in written
    assert capsys.readouterr().out.strip() == str(drafter / "README.md")
    assert main(["card", str(drafter), "--training", str(tmp_path)]) == 2
    assert "holds no dialogues" in capsys.readouterr().err
    evaluation.write_text("[]")
    assert main(["card", str(drafter), "--evaluation", str(evaluation)]) == 2
    assert "not what `slipstream evaluate --json` writes" in capsys.readouterr().err


def test_a_drafter_that_was_trained_on_says_from_where() -> None:
    first = {"steps": 100, "recipe": {"train": {"learning_rate": 1e-3}}, "num_dialogues": 20}
    second = RECORD | {"started_from": first}
    lines = card(second).splitlines()
    went_on = "a drafter after 100 steps at a learning rate of 0.001 at most, on 20 dialogues"
    assert f"* First weights: those of {went_on}." in lines and not any("copies of" in line for line in lines)
    third = card(RECORD | {"started_from": {"steps": 300, "started_from": first}})
    assert f"* First weights: those of a drafter after 300 steps, which went on from {went_on}." in third.splitlines()
