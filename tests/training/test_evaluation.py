"""What an evaluation measures, reports of faults, and leaves behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from models.tiny_models import write_tiny_hf_model
from speculation.test_choice import NAME, ship

from slipstream.bench.model_systems import ModelFactory
from slipstream.cli import main
from slipstream.config import ModelSettings, SettingError, SpeculativeSettings
from slipstream.engine.engine import Engine
from slipstream.models.loading import open_model
from slipstream.scheduler.protocol import DraftBlock, DraftRequest
from slipstream.speculation.ngram import NgramDrafter
from slipstream.training.evaluation import Conditions, PromptSet, evaluate
from slipstream.training.measured_decoding import measuring_settings

NGRAM = SpeculativeSettings(method="ngram")
SMALL = ("--dtype", "float32", "--num-threads", "1", "--no-progress", "--max-tokens", "12")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("target") / "tiny"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("the cat and the hat", "hand in hand")))
    return str(path)


def no_drafts(drafter: NgramDrafter, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
    raise ZeroDivisionError


def test_a_drafter_that_always_fails_is_said_to(
    model: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--model", model, "--prompts", prompts, "--temperature", "0", *SMALL]
    command += ["--speculative-config", '{"method": "ngram"}']
    assert main([*command, "--json", str(tmp_path / "whole")]) == 0
    assert "failed" not in capsys.readouterr().out
    monkeypatch.setattr(NgramDrafter, "propose", no_drafts)
    assert main([*command, "--json", str(tmp_path / "failing")]) == 1
    whole, failing = (json.loads((tmp_path / name).read_text())["sets"][0] for name in ("whole", "failing"))
    assert whole["draft_failures"] == {} and set(failing["draft_failures"]) == {"ZeroDivisionError"}
    assert failing["acceptance_length"] == 1.0 and failing["failures"] == 0
    count = failing["draft_failures"]["ZeroDivisionError"]
    assert f"The drafter failed on own, T = 0, 1 at once, ngram: ZeroDivisionError {count}." in (
        capsys.readouterr().out
    )


def test_the_textbook_rule_is_a_way_of_its_own_beside_the_coupled_one(model: str, prompts: str, tmp_path: Path) -> None:
    folder = ship(tmp_path, open_model(model, progress=False)) / NAME
    beside = json.dumps({"method": "dspark", "model": str(folder), "rejection_sample_method": "standard"})
    command = ["evaluate", str(folder), "--model", model, "--prompts", prompts, "--temperature", "1", *SMALL]
    command += ["--beside", beside]
    assert main([*command, "--json", str(tmp_path / "e")]) == 0
    coupled, standard = json.loads((tmp_path / "e").read_text())["sets"]
    assert (coupled["method"], standard["method"]) == ("dspark", "dspark standard")
    assert coupled["same_texts"] == 1.0 and coupled["draft_failures"] == standard["draft_failures"] == {}


@pytest.mark.parametrize("is_broken", [False, True])
def test_every_engine_is_closed_in_the_end(model: str, monkeypatch: pytest.MonkeyPatch, is_broken: bool) -> None:
    closed: list[Engine] = []
    close = Engine.close
    monkeypatch.setattr(Engine, "close", lambda engine: (closed.append(engine), close(engine)))
    settings = ModelSettings(model=model, dtype="float32", num_threads=1)
    factory = ModelFactory(settings, progress=False)
    ways = {"ngram": NGRAM, "other": SpeculativeSettings(method="dspark") if is_broken else NGRAM}

    def measure() -> None:
        evaluate(
            factory,
            measuring_settings(settings, None, 1, verify_all=True),
            ways,
            PromptSet("one", ["the cat"]),
            Conditions(0.0, 1, 6, 0),
            with_plain=True,
        )

    if is_broken:
        with pytest.raises(SettingError, match="no dspark drafter ships for tiny"):
            measure()
    else:
        measure()
    assert len(set(map(id, closed))) == len(closed) == (1 if is_broken else 3)
