"""The public `speculators` package's checkpoints and numbers, kept by benchmarks/against_speculators.py, which also
made sure that the package loads what is written here and gives the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from speculation.published_drafters import PUBLISHED, draft_text, kept, open_decoder, open_model

from slipstream.models.decoder import Decoder
from slipstream.speculation.drafter_config import Algorithm, MarkovKind, RowLayout
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint, write_drafter

NAMES = sorted(path.name for path in PUBLISHED.iterdir() if path.name != "target")


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return open_decoder(PUBLISHED / "target")


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_the_packages(decoder: Decoder, name: str) -> None:
    text, expected = kept(name)
    for anchor, theirs in expected.items():
        ours = draft_text(decoder, open_model(PUBLISHED / name), text, anchor)
        assert ours.hidden.shape == theirs.hidden.shape and ours.logits.shape == theirs.logits.shape
        assert ours.differing(theirs) == set(), ours.difference(theirs)


def test_the_checkpoints_are_of_all_kinds() -> None:
    configs = [open_drafter_checkpoint(PUBLISHED / name).config for name in NAMES]
    assert {(c.algorithm, c.layout) for c in configs} == {
        (Algorithm.DFLASH, RowLayout.FILL_IN),
        (Algorithm.DSPARK, RowLayout.FILL_IN),
        (Algorithm.DSPARK, RowLayout.ANCHOR_FIRST),
    }
    assert {c.markov for c in configs} == set(MarkovKind)
    assert {c.has_reduced_vocabulary for c in configs} == {c.attention_bias for c in configs} == {False, True}
    assert {(p.is_causal, p.window) for c in configs for p in c.patterns} == {(False, None), (False, 5), (True, 5)}
    assert {len(c.target_layer_ids) for c in configs} == {1, 2}
    assert {c.target_layer_ids[0] for c in configs} == {-1, 0, 1}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_what_the_package_loaded(tmp_path: Path, name: str) -> None:
    model = open_model(PUBLISHED / name)
    write_drafter(tmp_path, model.config, model.state_dict())
    ours, theirs = (
        json.loads(path.read_text()) for path in (tmp_path / "config.json", PUBLISHED / name / "written.json")
    )
    assert ours == theirs
    theirs, ours = (load_file(path / "model.safetensors") for path in (PUBLISHED / name, tmp_path))
    assert theirs.keys() == ours.keys()  # t2d too, without which the package loads no reduced vocabulary
    for key, value in theirs.items():
        assert torch.equal(value.float(), ours[key].float())


def test_the_versions_are_kept() -> None:
    for name in NAMES:
        with safe_open(PUBLISHED / name / "expected.safetensors", framework="pt") as file:
            assert file.metadata().keys() == {"speculators", "transformers", "torch"}
