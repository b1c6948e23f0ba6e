"""From nothing to a served drafter, on a tiny model: what training says of held-out text is what serving then does."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models.tiny_models import write_tiny_hf_model
from speculation.test_choice import NAME, ship
from training.training_rig import FILL_IN, tiny_run, tiny_target

from slipstream.bench.in_process import BenchRequest
from slipstream.bench.model_systems import ModelFactory
from slipstream.cli import main
from slipstream.config import ModelSettings, SettingError, SpeculativeSettings
from slipstream.models.loading import open_model
from slipstream.request import SamplingParams
from slipstream.scheduler.protocol import StepPlan, StepResult
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
from slipstream.training.batches import TrainingBatch
from slipstream.training.blocks import build_blocks
from slipstream.training.corpus import Dialogue
from slipstream.training.measured_decoding import Decoding, measuring_settings
from slipstream.training.target_states import TargetReader

PROMPTS = ("the cat", "and the other", "in the beginning", "then", "hand in hand", "what", "a thing", "one and one")


def greedy_dialogues(folder: Path) -> list[Dialogue]:
    """The tiny model's own greedy answers, loops and all: a rule that a drafter can learn."""
    factory = ModelFactory(ModelSettings(model=str(folder / "model"), dtype="float32"), progress=False)
    decoding = Decoding(factory, measuring_settings(ModelSettings(), None, 4, verify_all=True))
    sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    requests = [BenchRequest(tuple(factory.encode_chat(text)), sampling) for text in PROMPTS]
    record = decoding.run(requests, 4)
    dialogues = []
    for request, done in zip(requests, record.requests, strict=True):
        ids = [*request.prompt_token_ids, *done.token_ids]
        dialogues.append(Dialogue(np.array(ids, np.int32), np.arange(len(ids)) >= len(request.prompt_token_ids)))
    return dialogues


@pytest.mark.parametrize("changes", [{}, FILL_IN, {"window": 5}], ids=["dspark", "dflash", "window"])
def test_drafts_accepted_in_serving_are_the_matches_that_training_saw(tmp_path: Path, changes: dict[str, Any]) -> None:
    target = tiny_target(tmp_path)
    dialogues = greedy_dialogues(tmp_path)
    settings = {"num_steps": 60, "num_sequences": 4, "num_anchors": 20, "draft_vocab_size": 200, "evaluate_every": 60}
    run = tiny_run(tmp_path / "run", target, dialogues, held_out_every=8, **(settings | changes))
    run.trainer.run()
    drafter = run.export()

    config = run.config
    speculative = SpeculativeSettings(method=config.algorithm.value, model=str(drafter), num_speculative_tokens=None)
    factory = ModelFactory(ModelSettings(model=str(tmp_path / "model"), dtype="float32"), progress=False)
    decoding = Decoding(factory, measuring_settings(ModelSettings(), speculative, 1, verify_all=True))
    steps: list[tuple[int, int]] = []  # of each verifying step: tokens so far, drafts accepted

    for dialogue in dialogues[:3]:
        prompt = tuple(dialogue.token_ids[~dialogue.is_answer].tolist())
        emitted: list[int] = []
        steps = []

        def hear(plan: StepPlan, result: StepResult, prompt=prompt, emitted=emitted, steps=steps) -> None:
            for done in result.results:
                if done.num_verified == config.max_draft_tokens:
                    steps.append((len(prompt) + len(emitted) - 1, done.num_accepted))
                emitted.extend(done.token_ids)

        decoding.system.recorder.on_ran = hear
        sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        record = decoding.run([BenchRequest(prompt, sampling)], 1).requests[0]
        assert [*prompt, *record.token_ids] == dialogue.token_ids.tolist()

        anchors = np.array([anchor for anchor, _ in steps])
        batch = build_blocks(config, [dialogue], [anchors])
        states = TargetReader(target.decoder, config.target_layer_ids).read([dialogue])
        model = run.trainer.block_pass.model
        with torch.no_grad():  # as it was written, in bfloat16
            for parameter in model.parameters():
                parameter.copy_(parameter.bfloat16().float())
            result = run.trainer.block_pass.run(TrainingBatch(batch, states))
        matches = result.is_match.float().cumprod(dim=1).sum(dim=1).int().tolist()
        assert [accepted for _, accepted in steps] == matches
    acceptance = decoding.acceptance()
    assert acceptance is not None
    assert acceptance.accepted > 0.5 * acceptance.num_steps_verified, "a drafter that learned nothing proves nothing"


def lines_of(command: str, *arguments: str) -> None:
    assert main([command, *arguments]) == 0


def test_train_calibrate_and_evaluate_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_tiny_hf_model(tmp_path / "model"))
    prompts = tmp_path / "own.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "[data]\nnum_dialogues = 12\nnum_per_file = 6\nmax_answer_tokens = 24\nmax_num_seqs = 4\nsecond_turns = 0.5\n"
        "[data.kinds]\nself = 0.5\narithmetic = 0.5\n[drafter]\ndraft_vocab_size = 100\nmarkov_rank = 4\n"
        "from_layers = [1, 2]\n[train]\nnum_steps = 6\nnum_sequences = 2\nnum_anchors = 4\nheld_out_every = 4\n"
    )
    folder = tmp_path / "run"
    common = ("--dtype", "float32", "--num-threads", "1", "--no-progress")
    arguments = (model, "--recipe", str(recipe), "--prompts", f"{prompts}=1.0", "--output", str(folder), *common)
    lines_of("train", *arguments, "--until-step", "3")
    lines_of("train", *arguments)
    drafter = folder / "drafter"
    config = open_drafter_checkpoint(drafter).config
    assert config.training["steps"] == 6 and config.training["recipe"]["train"]["num_steps"] == 6
    assert config.target.num_layers == 3 and config.target.weights and config.target.tokenizer
    page = (folder / "report.html").read_text()
    assert "<svg" in page and "Held-out acceptance" in page and "http" not in page

    small = ("--model", model, "--prompts", str(prompts), "--max-tokens", "16", *common)
    lines_of("calibrate", str(drafter), *small, "--events", "20", "--concurrency", "4", "--json", str(tmp_path / "c"))
    calibrations = open_drafter_checkpoint(drafter).config.calibrations
    assert [c.temperature for c in calibrations] == [0.0, 1.0] and len(calibrations[0].divisors) == 5
    figures = json.loads((tmp_path / "c").read_text())
    assert figures[1]["divisors"] == pytest.approx(calibrations[1].divisors)
    assert all(count >= 20 for count in figures[0]["after"]["num_events"][:1])

    capsys.readouterr()
    lines_of("evaluate", str(drafter), *small, "--json", str(tmp_path / "e"))
    printed = capsys.readouterr().out
    assert "own" in printed and "speed-up" in printed
    values = json.loads((tmp_path / "e").read_text())
    assert values["command"].startswith(f"slipstream evaluate {drafter} --model")
    found = values["sets"]
    assert [part["temperature"] for part in found] == [0.0, 1.0]
    assert all(part["same_texts"] == 1.0 and part["acceptance_length"] >= 1.0 for part in found)
    assert found[1]["calibration"]["num_events"][0] > 0

    card = ("card", str(drafter), "--training", str(folder), "--evaluation", str(tmp_path / "e"))
    lines_of(*card, "--licence", "Apache-2.0")
    written = (drafter / "README.md").read_text()
    assert "6 of 6 steps" in written and "own.jsonl" in written and values["command"] in written
    assert (
        "slipstream calibrate" in written and f"| own | 0 | 1 | dspark | {found[0]['acceptance_length']:.2f}" in written
    )


def test_ways_take_turns_on_several_sets_as_they_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_hf_model(tmp_path / "tiny")
    folder = ship(tmp_path / "drafters", open_model(str(model), progress=False)) / NAME
    for name in ("first", "second"):
        lines = (json.dumps({"prompt": f"{name} {text}"}) + "\n" for text in PROMPTS[:5])
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    chain = json.dumps({"method": "chain", "drafters": ["ngram", "dspark"], "model": str(folder)})
    common = ("--model", str(model), "--dtype", "float32", "--num-threads", "1", "--no-progress", "--max-tokens", "12")
    sets = ("--prompts", str(tmp_path / "first.jsonl"), "--prompts", str(tmp_path / "second.jsonl"))
    for decided in ((), ("--as-served", "--profile-seconds", "0.5")):
        lines_of(
            "evaluate", str(folder), "--beside", chain, "--concurrency", "1,3", "--temperature", "1",
            *sets, *common, *decided, "--json", str(tmp_path / "e"),
        )  # fmt: skip
        values = json.loads((tmp_path / "e").read_text())
        assert values["as_served"] is bool(decided)
        found = [(part["name"], part["concurrency"], part["method"]) for part in values["sets"]]
        assert sorted(found) == sorted(
            (name, c, way) for name in ("first", "second") for c in (1, 3) for way in ("dspark", "ngram+dspark")
        )
        for part in values["sets"]:
            assert part["same_texts"] == 1.0 and part["num_tokens"] > 0 and part["failures"] == 0
            assert part["speed_up"] == pytest.approx(part["tokens_per_s"] / part["plain_tokens_per_s"])
        means = {(mean["concurrency"], mean["method"]): mean for mean in values["means"]}
        assert len(means) == 4 and all(mean["num_sets"] == 2 for mean in means.values())
        lengths = [p["acceptance_length"] for p in values["sets"] if (p["concurrency"], p["method"]) == (3, "dspark")]
        assert means[3, "dspark"]["acceptance_length"] == pytest.approx(sum(lengths) / 2)
        assert capsys.readouterr().out.count("mean of sets") == 4


def test_an_evaluation_that_cannot_be_is_refused(tmp_path: Path) -> None:
    folder = ship(tmp_path, open_model(str(write_tiny_hf_model(tmp_path / "tiny")), progress=False)) / NAME
    for flags, words in (
        (("--concurrency", "1,x"), "whole numbers from 1 on, such as 1,4,16; got '1,x'"),
        (("--concurrency", "0"), "whole numbers"),
        (("--beside", "none"), "'none' drafts nothing of its own"),
        (("--beside", json.dumps({"method": "dspark", "model": str(folder)})), "must differ in"),
        (("--json", str(tmp_path)), "is a directory"),
    ):
        err = io.StringIO()
        with redirect_stderr(err):
            assert main(["evaluate", str(folder), "--no-progress", *flags]) == 2
        assert words in err.getvalue()


def test_refusals_name_what_would_work(tmp_path: Path) -> None:
    model = str(write_tiny_hf_model(tmp_path / "model"))

    def refused(command: str, *arguments: str) -> str:
        err = io.StringIO()
        with redirect_stderr(err):
            assert main([command, *arguments]) == 2
        return err.getvalue()

    output = ("--output", str(tmp_path / "run"), "--no-progress")
    assert "did you mean 'num_steps'" in refused("train", model, *output, "--set", "train.num_step=3")
    assert "section.key" in refused("train", model, *output, "--set", "steps=3")
    assert "nosuch.jsonl" in refused("train", model, *output, "--prompts", "nosuch.jsonl")
    layers = refused("train", model, *output, "--set", "drafter.from_layers=[7, 8]", "--data", str(tmp_path / "none"))
    assert "holds no dialogues" in layers
    assert "no drafter is here" in refused("calibrate", str(tmp_path), "--model", model)
    assert "not both" in refused("evaluate", "--model", model)
    with pytest.raises(SettingError, match="0 to 2"):
        tiny_run(tmp_path / "x", tiny_target(tmp_path), greedy_dialogues(tmp_path), from_layers=(2, 3))


def test_a_finished_run_leaves_its_calibrated_drafter_alone(tmp_path: Path) -> None:
    model = str(write_tiny_hf_model(tmp_path / "model"))
    folder = tmp_path / "run"
    changes = ["data.num_dialogues=6", "data.num_per_file=6", "data.max_answer_tokens=20", "train.num_steps=2"]
    changes += ["data.kinds={chat=1}", "train.held_out_every=3", "drafter.draft_vocab_size=64"]
    arguments = (model, "--output", str(folder), "--dtype", "float32", "--num-threads", "1", "--no-progress")
    lines_of("train", *arguments, *(f"--set={change}" for change in changes))
    config = folder / "drafter" / "config.json"
    config.write_text(
        config.read_text().replace(
            '"calibrations": []', '"calibrations": [{"temperature": 0, "divisors": [2, 2, 2, 2, 2]}]'
        )
    )
    written = config.read_text()
    lines_of("train", *arguments, *(f"--set={change}" for change in changes))
    assert config.read_text() == written and "divisors" in written
    assert "Training: 2 of 2" in (folder / "train.log").read_text()
