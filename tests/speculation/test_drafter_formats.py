"""Reading every published format, writing ours, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from speculation.make_fixtures import MEANT, fixture_tensors, speculators_values, write_fixture
from speculation.tiny_drafters import VOCAB_SIZE, draft_vocabulary, tiny_drafter_config, tiny_drafter_weights

from slipstream.attention.pattern import AttentionPattern
from slipstream.models.config import ModelLoadError, RopeScaling
from slipstream.speculation.drafter_config import (
    Algorithm,
    Calibration,
    DrafterConfig,
    MarkovKind,
    RowLayout,
    TargetIdentity,
)
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint, write_drafter
from slipstream.speculation.formats.zlab import default_layer_ids

CPU = torch.device("cpu")


def without_identity(config: DrafterConfig) -> DrafterConfig:
    return dataclasses.replace(config, target=TargetIdentity(), training={})


@pytest.mark.parametrize("name", MEANT)
def test_each_format_means_what_it_says(tmp_path: Path, name: str) -> None:
    checkpoint = open_drafter_checkpoint(write_fixture(tmp_path, name))
    assert without_identity(checkpoint.config) == MEANT[name]
    model = checkpoint.load(torch.float32, CPU)
    for key, value in fixture_tensors(MEANT[name]).items():
        assert torch.equal(model.state_dict()[key], value)
    assert model.target_ids.tolist() == draft_vocabulary(MEANT[name]).tolist()


def test_P3_the_default_k_follows_the_layout(tmp_path: Path) -> None:
    most = {
        name: open_drafter_checkpoint(write_fixture(tmp_path / name, name)).config.max_draft_tokens for name in MEANT
    }
    assert most == {
        "zlab": 7,
        "speculators-dflash": 7,
        "speculators-dspark": 8,
        "speculators-dspark-old": 7,
        "deepspec-dspark": 7,
        "deepspec-dflash": 7,
    }


def test_P4_layer_ids_mean_the_same_in_every_format(tmp_path: Path) -> None:
    for name in MEANT:
        config = open_drafter_checkpoint(write_fixture(tmp_path / name, name)).config
        assert config.target_layer_ids == (0, 1, 2)
        stored = json.loads((tmp_path / name / "config.json").read_text())
        if name.startswith("speculators"):
            assert stored["aux_hidden_state_layer_ids"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        (
            "speculators-dspark",
            {"aux_hidden_state_layer_ids": [0, 2, 2]},
            r"ascending numbers from -1 on, got \[-1, 1, 1\]",
        ),
        ("deepspec-dspark", {"target_layer_ids": [0, 1, 3]}, "layer 3 does not exist: the target has 3 layers"),
        ("deepspec-dspark", {"target_layer_ids": [-2, 1, 2]}, r"got \[-2, 1, 2\]"),
        ("deepspec-dspark", {"target_layer_ids": [2, 1, 0]}, r"got \[2, 1, 0\]"),
        ("speculators-dspark", {"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is missing"),
    ],
)
def test_P4_impossible_layer_ids_are_named(tmp_path: Path, name: str, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ModelLoadError, match=found):
        open_drafter_checkpoint(write_fixture(tmp_path, name, **changes))


@pytest.mark.parametrize("name", MEANT)
def test_P10_a_missing_mask_id_is_an_error(tmp_path: Path, name: str) -> None:
    changes: dict[str, Any] = {"mask_token_id": None}
    if name == "zlab":
        changes = {"dflash_config": {"target_layer_ids": [0, 1, 2]}}
    with pytest.raises(ModelLoadError, match="mask_token_id is missing"):
        open_drafter_checkpoint(write_fixture(tmp_path, name, **changes))


@pytest.mark.parametrize("mask", [-1, VOCAB_SIZE, "x", True])
def test_P10_an_impossible_mask_id_is_an_error(tmp_path: Path, mask: object) -> None:
    with pytest.raises(ModelLoadError, match="mask_token_id"):
        open_drafter_checkpoint(write_fixture(tmp_path, "deepspec-dspark", mask_token_id=mask))


def test_the_block_size_may_stand_in_two_places(tmp_path: Path) -> None:
    nested = {"mask_token_id": 4, "target_layer_ids": [0, 1, 2], "block_size": 5}
    directory = write_fixture(tmp_path, "zlab", block_size=None, dflash_config=nested)
    assert open_drafter_checkpoint(directory).config.block_size == 5
    with pytest.raises(ModelLoadError, match="block_size"):
        open_drafter_checkpoint(write_fixture(tmp_path, "zlab", block_size=None))


def test_layer_ids_that_a_zlab_model_leaves_out() -> None:
    assert default_layer_ids(36, 5) == [1, 9, 17, 25, 33]
    assert default_layer_ids(40, 5) == [1, 10, 19, 28, 37]
    assert default_layer_ids(28, 5) == [1, 7, 13, 19, 25]
    assert default_layer_ids(28, 1) == [14]


SLIDING = ["sliding_attention", "full_attention"]


def zlab_attention(tmp_path: Path, dflash: dict[str, Any], **top: Any) -> tuple[AttentionPattern, ...]:
    values = {"mask_token_id": 4, "target_layer_ids": [0, 1, 2], **dflash}
    return open_drafter_checkpoint(write_fixture(tmp_path, "zlab", dflash_config=values, **top)).config.patterns


def test_causality_and_windows_of_zlab_models(tmp_path: Path) -> None:
    full = AttentionPattern(False, None)
    assert zlab_attention(tmp_path, {}) == (full, full)
    assert zlab_attention(tmp_path, {}, layer_types=SLIDING, sliding_window=9) == (AttentionPattern(True, 9), full)
    assert zlab_attention(tmp_path, {"causal": False}, layer_types=SLIDING, sliding_window=9) == (
        AttentionPattern(False, 9),
        full,
    )
    assert zlab_attention(tmp_path, {"causal": True}) == (AttentionPattern(True, None),) * 2
    assert zlab_attention(tmp_path, {"causal": True}, is_causal=False) == (full, full)
    assert zlab_attention(tmp_path, {"use_swa": True, "swa_window_size": 8}) == (AttentionPattern(False, 8),) * 2
    with pytest.raises(ModelLoadError, match="attention_sink_bias is not supported"):
        zlab_attention(tmp_path, {"attention_sink_bias": True})


@pytest.mark.parametrize(
    ("name", "said", "is_causal"),
    [
        ("speculators-dflash", None, False),
        ("speculators-dspark", None, True),
        ("speculators-dflash", False, True),
        ("speculators-dspark", True, False),
    ],
)
def test_causality_of_speculators_windows(tmp_path: Path, name: str, said: bool | None, is_causal: bool) -> None:
    layer = speculators_values(MEANT[name])["transformer_layer_config"] | {"layer_types": SLIDING, "sliding_window": 9}
    directory = write_fixture(tmp_path, name, transformer_layer_config=layer, sliding_window_non_causal=said)
    assert open_drafter_checkpoint(directory).config.patterns == (
        AttentionPattern(is_causal, 9),
        AttentionPattern(False),
    )


@pytest.mark.parametrize(
    "config",
    [
        tiny_drafter_config(
            calibrations=(
                Calibration(temperature=0.0, divisors=(1.0, 1.5, 2.0, 2.0, 2.0, 2.0)),
                Calibration(temperature=1.0, divisors=(0.5,) * 6, shifts=(-0.25,) * 6),
            ),
            target=TargetIdentity(
                name="tiny", vocab_size=VOCAB_SIZE, hidden_size=64, num_layers=3, weights="ab", tokenizer="cd"
            ),
            training={"steps": 3, "data": ["a", "b"]},
        ),
        tiny_drafter_config(markov=MarkovKind.GATED, patterns=(AttentionPattern(True, 9), AttentionPattern(False))),
        tiny_drafter_config(markov=MarkovKind.RNN, patterns=(AttentionPattern(False, 9),) * 2, qk_norm=False),
        tiny_drafter_config(
            attention_bias=True, rope_scaling=RopeScaling(kind="llama3", factor=4.0), target_layer_ids=(-1, 2)
        ),
        MEANT["zlab"],
        MEANT["speculators-dspark-old"],
        MEANT["deepspec-dflash"],
    ],
)
def test_what_is_written_is_read_back(tmp_path: Path, config: DrafterConfig) -> None:
    tensors = tiny_drafter_weights(config)
    write_drafter(tmp_path, config, tensors)
    checkpoint = open_drafter_checkpoint(tmp_path)
    known = dataclasses.replace(config.target, vocab_size=VOCAB_SIZE, hidden_size=64)
    assert checkpoint.config == dataclasses.replace(config, target=known)
    state = checkpoint.load(torch.float32, CPU).state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], value) for name, value in tensors.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_what_the_format_cannot_say_is_not_written(tmp_path: Path) -> None:
    config = tiny_drafter_config(patterns=(AttentionPattern(True, None),))
    with pytest.raises(ValueError, match="no causal layer without one"):
        write_drafter(tmp_path, config, tiny_drafter_weights(config))
    config = tiny_drafter_config()
    tensors = tiny_drafter_weights(config)
    del tensors["norm.weight"]
    with pytest.raises(ValueError, match=r"norm\.weight"):
        write_drafter(tmp_path, config, tensors)


def with_tensors(tmp_path: Path, name: str, **changes: torch.Tensor | None) -> Path:
    directory = write_fixture(tmp_path, name)
    tensors = load_file(directory / "model.safetensors") | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"fc.weight": None}, "'fc.weight' is missing"),
        ({"fc.weight": torch.zeros(64, 128)}, r"'fc.weight' has shape \(64, 128\), the configuration says \(64, 192\)"),
        ({"mask_hidden": torch.zeros(64)}, "'mask_hidden' has no place in a dspark drafter"),
        ({"d2t": None}, "'d2t' is missing"),
        ({"d2t": torch.zeros(40)}, "'d2t' is stored as F32"),
        ({"norm.weight": torch.zeros(64, dtype=torch.int32)}, "'norm.weight' is stored as I32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    directory = with_tensors(tmp_path, "speculators-dspark", **tensors)
    with pytest.raises(ModelLoadError, match=message):
        open_drafter_checkpoint(directory)


def test_P8_a_broken_vocabulary_map_is_refused(tmp_path: Path) -> None:
    outside = torch.zeros(40, dtype=torch.int64)
    outside[7] = 1000
    with pytest.raises(ModelLoadError, match="d2t leads to token 1007, outside the target's vocabulary of 267"):
        open_drafter_checkpoint(with_tensors(tmp_path, "speculators-dspark", d2t=outside)).load(torch.float32, CPU)
    twice = torch.zeros(40, dtype=torch.int64)
    twice[7] = 1
    with pytest.raises(ModelLoadError, match="two draft ids to the same token"):
        open_drafter_checkpoint(with_tensors(tmp_path, "speculators-dspark", d2t=twice)).load(torch.float32, CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markov_rank": 16}, "markov_rank is 16, but the Markov head's tensors have rank 8"),
        ({"markov_head_type": "gated"}, "markov_head_type is 'gated', but the tensors are those of a 'vanilla' head"),
        (
            {"enable_confidence_head": False},
            "enable_confidence_head is False, but confidence_head.proj.weight is there",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM.*no drafter's that is supported"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"num_target_layers": None}, "num_target_layers is missing"),
    ],
)
def test_configurations_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        open_drafter_checkpoint(write_fixture(tmp_path, "deepspec-dspark", **changes))


def test_a_directory_without_a_drafter(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        open_drafter_checkpoint(tmp_path / "nowhere")
    (write_fixture(tmp_path, "zlab") / "mask_embedding.pt").touch()
    with pytest.raises(ModelLoadError, match=r"mask_embedding\.pt"):
        open_drafter_checkpoint(tmp_path)


def test_layouts_have_the_rows_that_they_run() -> None:
    """One answer for the scheduler's budget and for the drafter's rows."""
    for config in MEANT.values():
        for k in range(1, config.max_draft_tokens + 1):
            assert config.draft_layout.draft_query_rows(9, k) == config.num_block_rows(k)
    assert MEANT["deepspec-dflash"].layout is RowLayout.ANCHOR_FIRST
    assert MEANT["deepspec-dflash"].algorithm is Algorithm.DFLASH
