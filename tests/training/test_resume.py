"""A run that is ended at any moment goes on with the same weights, bit by bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from models.tiny_models import write_tiny_hf_model
from safetensors.torch import load_file
from training.training_rig import FILL_IN, tiny_dialogues, tiny_run, tiny_target

from slipstream.config import SettingError
from slipstream.training.corpus import CorpusFolder


def weights_of(run) -> dict[str, torch.Tensor]:
    return run.trainer.block_pass.model.state_dict()


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_an_interrupted_run_ends_with_the_weights_and_curves_of_one_that_was_not(tmp_path: Path) -> None:
    target, dialogues = tiny_target(tmp_path), tiny_dialogues()
    whole = tiny_run(tmp_path / "whole", target, dialogues)
    whole.trainer.run()
    for until in (5, 7, None):  # never where a checkpoint falls due
        parts = tiny_run(tmp_path / "parts", target, dialogues)
        parts.trainer.run(until)
    assert parts.trainer.step == whole.trainer.step == 12
    assert_equal(weights_of(parts), weights_of(whole))
    assert parts.trainer.history == whole.trainer.history
    assert len(whole.trainer.history.held_out) == 2


def test_a_run_that_fails_in_a_step_keeps_what_it_had(tmp_path: Path) -> None:
    target, dialogues = tiny_target(tmp_path), tiny_dialogues()
    run = tiny_run(tmp_path / "run", target, dialogues)

    def interrupt(step: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    run.trainer.on_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.trainer.run()
    again = tiny_run(tmp_path / "run", target, dialogues)
    assert again.trainer.step == 3
    assert_equal(weights_of(again), weights_of(run))


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    target, dialogues = tiny_target(tmp_path), tiny_dialogues()
    runs = [
        tiny_run(tmp_path / name, target, dialogues, seed=seed, num_steps=3)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    for run in runs:
        run.trainer.run()
    assert_equal(weights_of(runs[0]), weights_of(runs[1]))
    assert not torch.equal(weights_of(runs[0])["fc.weight"], weights_of(runs[2])["fc.weight"])


def test_the_states_cache_changes_nothing(tmp_path: Path) -> None:
    target, dialogues = tiny_target(tmp_path), tiny_dialogues()
    runs = [tiny_run(tmp_path / str(cached), target, dialogues, state_cache=cached, num_steps=3) for cached in (0, 1)]
    for run in runs:
        run.trainer.run()
    for name, values in weights_of(runs[0]).items():
        torch.testing.assert_close(weights_of(runs[1])[name], values, atol=1e-5, rtol=1e-4)


def test_states_of_a_run_with_the_same_taps_are_shared_and_those_of_another_left_alone(tmp_path: Path) -> None:
    target, dialogues = tiny_target(tmp_path), tiny_dialogues()
    whole = tiny_run(tmp_path / "whole", target, dialogues, num_steps=3, **FILL_IN)
    tiny_run(tmp_path / "first", target, dialogues)
    states = tmp_path / "first" / "states"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in states.iterdir()}
    assert len(before) == 4
    twin = tiny_run(tmp_path / "twin", target, dialogues, states=states, num_steps=3, **FILL_IN)
    for run in (whole, twin):
        run.trainer.run()
    assert_equal(weights_of(twin), weights_of(whole))
    assert not (tmp_path / "twin" / "states").exists()
    with pytest.raises(SettingError, match=r"other states \(layers was \[1\], is \[0, 1\]\)"):
        tiny_run(tmp_path / "other", target, dialogues, states=states, target_layers=(0, 1))
    with pytest.raises(SettingError, match="these are other states"):
        tiny_run(tmp_path / "other", target, dialogues[:-1], states=states)
    with pytest.raises(SettingError, match="no target states are here"):
        tiny_run(tmp_path / "other", target, dialogues, states=tmp_path / "none")
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in states.iterdir()}


def test_another_recipe_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    target, dialogues = tiny_target(tmp_path), tiny_dialogues()
    tiny_run(tmp_path / "run", target, dialogues).trainer.run(1)
    with pytest.raises(SettingError, match=r"learning_rate was 0\.003, is 0\.001"):
        tiny_run(tmp_path / "run", target, dialogues, learning_rate=1e-3)
    tiny_run(tmp_path / "run", target, dialogues, checkpoint_every=1)  # how often it is saved is nobody's matter


def train(model: Path, output: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "slipstream.cli", "train", str(model), "--output", str(output), "--no-progress"]
    changes = (
        "data.num_dialogues=8",
        "data.num_per_file=4",
        "data.max_answer_tokens=24",
        "data.max_num_seqs=4",
        "data.kinds={chat = 1}",
        "train.num_steps=400",
        "train.num_sequences=2",
        "train.num_anchors=4",
        "train.held_out_every=4",
        "train.evaluate_every=400",
        "train.checkpoint_every=5",
        "drafter.draft_vocab_size=80",
        "drafter.markov_rank=4",
    )
    return [*command, "--dtype", "float32", "--num-threads", "1", *more, *(f"--set={change}" for change in changes)]


def test_killed_and_started_again_it_gives_the_same_drafter(tmp_path: Path) -> None:
    model = write_tiny_hf_model(tmp_path / "model")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(train(model, tmp_path / "whole"), check=True, env=environment)
    with subprocess.Popen(train(model, tmp_path / "killed"), env=environment) as process:
        state = tmp_path / "killed" / "run.pt"
        while not state.is_file() and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed; make the run longer"
    assert not (tmp_path / "killed" / "drafter").exists()
    subprocess.run(train(model, tmp_path / "killed"), check=True, env=environment)
    weights = [load_file(tmp_path / name / "drafter" / "model.safetensors") for name in ("whole", "killed")]
    assert_equal(*weights)
    configs = [json.loads((tmp_path / n / "drafter" / "config.json").read_text()) for n in ("whole", "killed")]
    assert configs[0] == configs[1]
    read = [CorpusFolder(tmp_path / name / "data").read() for name in ("whole", "killed")]
    assert [d.token_ids.tolist() for d in read[0]] == [d.token_ids.tolist() for d in read[1]]
