"""From `--speculative-config` to a block drafter: what is decided, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models.tiny_models import write_tiny_hf_model
from speculation.make_fixtures import MEANT, write_fixture
from speculation.tiny_drafters import VOCAB_SIZE, tiny_drafter_config, tiny_drafter_weights

from slipstream.config import ModelSettings, SettingError, SpeculativeSettings, check_speculative
from slipstream.config import speculative_settings_from as settings_from
from slipstream.execution.build import build_executor
from slipstream.models.config import ModelLoadError
from slipstream.models.fingerprint import WeightFingerprint, tokenizer_fingerprint
from slipstream.models.loading import open_model
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.speculation.drafter_config import Calibration, DrafterConfig, TargetIdentity
from slipstream.speculation.formats.checkpoint import write_drafter
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource

MODEL = ModelSettings(dtype="float32", device="cpu", batch_invariant=True, max_model_len=256, num_threads=1)


def opened(directory: Path, method: str = "dspark", **other: Any) -> DrafterSource:
    source = open_drafter(settings_from({"method": method, "model": str(directory), **other}))
    assert source is not None
    return source


def written(directory: Path, config: DrafterConfig) -> Path:
    write_drafter(directory, config, tiny_drafter_weights(config))
    return directory


@pytest.mark.parametrize("name", MEANT)
def test_layout_and_k_come_from_the_checkpoint(tmp_path: Path, name: str) -> None:
    source = opened(write_fixture(tmp_path, name), MEANT[name].algorithm.value)
    assert source.settings.num_speculative_tokens == MEANT[name].max_draft_tokens
    layout = {
        "zlab": "dflash",
        "speculators-dflash": "dflash",
        "speculators-dspark": "dspark",
        "speculators-dspark-old": "dspark_fill_in",
        "deepspec-dspark": "dspark",
        "deepspec-dflash": "dspark",
    }[name]
    assert source.layout is LAYOUTS[layout]
    assert source.kv_bytes_per_token(torch.float32) == 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, width, bytes


def test_P1_k_above_the_trained_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"num_speculative_tokens 9 is more than the 8 drafts.*nearest that works is 8"
    ):
        opened(write_fixture(tmp_path / "a", "speculators-dspark"), num_speculative_tokens=9)
    with pytest.raises(SettingError, match=r"num_speculative_tokens 8 is more than the 7 drafts"):
        opened(write_fixture(tmp_path / "b", "zlab"), "dflash", num_speculative_tokens=8)


def test_P2_every_k_up_to_the_block_is_taken(tmp_path: Path) -> None:
    directory = write_fixture(tmp_path, "speculators-dspark")
    for k in range(1, 9):
        assert opened(directory, num_speculative_tokens=k).settings.num_drafts == k


def test_P7_drafting_ends_where_the_drafters_positions_end(tmp_path: Path) -> None:
    directory = written(tmp_path, tiny_drafter_config(max_position=128))
    assert opened(directory).settings.draft_max_model_len == 128
    assert opened(directory, draft_max_model_len=100).settings.draft_max_model_len == 100
    with pytest.raises(SettingError, match="draft_max_model_len 200 is more than the 128 positions"):
        opened(directory, draft_max_model_len=200)


def test_the_method_must_be_the_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r'holds a dspark drafter, not \'dflash\'; write "method": "dspark"'):
        opened(write_fixture(tmp_path, "speculators-dspark"), "dflash")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SpeculativeSettings(method="draft_model"), "method 'draft_model' needs a model"),
        (SpeculativeSettings(method="dspark", model=" "), "method 'dspark' needs a model"),
        (SpeculativeSettings(method="auto", model="x"), "'auto' has no model"),
        (SpeculativeSettings(method="ngram", model="x"), "model belongs to the methods dflash, dspark, draft_model"),
        (
            SpeculativeSettings(method="dspark", model="x", draft_sample_method="topk"),
            "choose one of coupled, probabilistic, greedy",
        ),
        (
            SpeculativeSettings(method="dspark", model="x", rejection_sample_method="block"),
            "rejection_sample_method 'block' is not known; choose one of coupled, standard",
        ),
        (
            SpeculativeSettings(
                method="dspark", model="x", rejection_sample_method="standard", draft_sample_method="coupled"
            ),
            "'standard' takes drafts whose noise no later draw repeats",
        ),
        (
            SpeculativeSettings(method="dspark", model="x", draft_sample_method="probabilistic"),
            '\'coupled\' accepts nothing else; write "rejection_sample_method": "standard"',
        ),
    ],
)
def test_settings_that_do_not_fit_the_method(settings: SpeculativeSettings, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_speculative(settings)


def test_a_calibration_too_short_is_refused(tmp_path: Path) -> None:
    short = Calibration(temperature=1.0, divisors=(1.0, 1.0))
    directory = written(tmp_path, tiny_drafter_config(calibrations=(short,)))
    with pytest.raises(ModelLoadError, match="temperature 1 has 2 positions, the drafter 6"):
        opened(directory)


def test_a_target_of_another_shape_is_refused(tmp_path: Path) -> None:
    source = opened(write_fixture(tmp_path / "drafter", "deepspec-dspark"))
    for changes, message in (
        ({"vocab_size": 300}, "a vocabulary of 267 tokens, llama has a vocabulary of 300"),
        ({"hidden_size": 32}, "hidden states of width 64, llama has hidden states of width 32"),
        ({"num_hidden_layers": 4}, "it expects 3 layers, llama has 4 layers"),
    ):
        directory = tmp_path / str(changes) / "llama"
        target = open_model(str(write_tiny_hf_model(directory, **changes)), progress=False)
        with pytest.raises(ModelLoadError, match=f"made for another target.*{message}"):
            source.check_target(target)
    shallow = open_model(str(write_tiny_hf_model(tmp_path / "2" / "llama", num_hidden_layers=2)), progress=False)
    with pytest.raises(ModelLoadError, match="it reads target layer 2"):
        opened(write_fixture(tmp_path / "other", "speculators-dspark")).check_target(shallow)


def fingerprint_of(directory: Path) -> str:
    fingerprint = WeightFingerprint()
    open_model(str(directory), progress=False).load_weights(torch.bfloat16, "cpu", fingerprint)
    return fingerprint.value()


def test_P9_the_same_width_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    target = write_tiny_hf_model(tmp_path / "target")
    other = write_tiny_hf_model(tmp_path / "other")
    text = json.loads((other / "tokenizer.json").read_text())
    vocabulary = text["model"]["vocab"]
    vocabulary["!"], vocabulary["+"] = vocabulary["+"], vocabulary["!"]
    (other / "tokenizer.json").write_text(json.dumps(text))
    mine = tokenizer_fingerprint(open_model(str(target), progress=False).tokenizer)
    source = opened(
        written(tmp_path / "drafter", tiny_drafter_config(target=TargetIdentity(name="tiny", tokenizer=mine)))
    )
    source.check_target(open_model(str(target), progress=False))
    with pytest.raises(ModelLoadError, match=rf"another target \(tiny\): its tokenizer's fingerprint is {mine}"):
        source.check_target(open_model(str(other), progress=False))


def test_other_weights_of_the_same_shape_are_refused(tmp_path: Path) -> None:
    target, other = write_tiny_hf_model(tmp_path / "target"), write_tiny_hf_model(tmp_path / "other", seed=1)
    mine, others = fingerprint_of(target), fingerprint_of(other)
    assert mine != others
    source = opened(written(tmp_path / "drafter", tiny_drafter_config(target=TargetIdentity(weights=mine))))

    def build(directory: Path) -> object:
        return build_executor(
            open_model(str(directory), progress=False), MODEL, num_kv_blocks=8, block_size=16, drafter=source
        )

    build(target)
    with pytest.raises(ModelLoadError, match=f"weights have the fingerprint {mine}, these {others}"):
        build(other)


def test_the_fingerprint_is_of_the_source_whatever_type_runs(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path)
    source = open_model(str(directory), progress=False)
    values = []
    for dtype in (torch.float32, torch.bfloat16):
        fingerprint = WeightFingerprint()
        source.load_weights(dtype, "cpu", fingerprint)
        values.append(fingerprint.value())
    assert values[0] == values[1]
    changed = WeightFingerprint()
    for name, tensor in source.tensors():
        changed.add(name, tensor * 1.01 if name == "model.norm.weight" else tensor)
    assert changed.value() != values[0]


def test_a_block_drafter_needs_a_real_model(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="reads the hidden states of a real model"):
        opened(write_fixture(tmp_path, "zlab"), "dflash").build(None)


def test_settings_are_decided_once(tmp_path: Path) -> None:
    source = opened(write_fixture(tmp_path, "speculators-dspark"), num_speculative_tokens=3)
    again = open_drafter(source.settings)
    assert again is not None and again.settings == source.settings
    assert dataclasses.replace(source.settings, num_speculative_tokens=None).num_drafts == 5
    assert VOCAB_SIZE == 267
