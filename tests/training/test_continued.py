"""A drafter that is trained on: it begins where it ended, with its vocabulary, and only if it fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_rig import FILL_IN, tiny_dialogues, tiny_run, tiny_target

from slipstream.config import SettingError


def test_it_begins_with_the_weights_the_vocabulary_and_the_mask_of_the_drafter(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    first = tiny_run(tmp_path / "first", target, tiny_dialogues())
    first.trainer.run()
    folder = first.export()
    old = first.trainer.block_pass.model
    new = tiny_run(tmp_path / "second", target, tiny_dialogues(20, seed=5), start=folder, seed=9)
    model = new.trainer.block_pass.model
    assert new.config.mask_token_id == first.config.mask_token_id
    assert torch.equal(model.target_ids, old.target_ids)
    for name, values in old.state_dict().items():
        assert torch.equal(model.state_dict()[name].to(torch.bfloat16), values.to(torch.bfloat16)), name
    assert all(values.requires_grad and values.dtype == torch.float32 for values in model.parameters())
    new.trainer.run()
    assert new.trainer.step == 12
    assert not torch.equal(model.fc.weight, old.fc.weight)
    assert new.config.training["started_from"]["steps"] == 12


def test_a_drafter_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    folder = tiny_run(tmp_path / "first", target, tiny_dialogues()).export()
    with pytest.raises(SettingError, match=r"--start .*first.drafter: its draft_vocab_size is 60, .* give 50;"):
        tiny_run(tmp_path / "second", target, tiny_dialogues(), start=folder, draft_vocab_size=50)
    with pytest.raises(SettingError, match="its algorithm is"):
        tiny_run(tmp_path / "third", target, tiny_dialogues(), start=folder, **FILL_IN)


def test_a_run_is_not_gone_on_with_from_another_start(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    first = tiny_run(tmp_path / "first", target, tiny_dialogues())
    first.trainer.run(2)
    folder = first.export()
    with pytest.raises(SettingError, match="start was not given, is given"):
        tiny_run(tmp_path / "first", target, tiny_dialogues(), start=folder)


def test_a_run_whose_draft_vocabulary_was_chosen_otherwise_is_refused(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    first = tiny_run(tmp_path / "first", target, tiny_dialogues())
    first.trainer.block_pass.model.d2t[-1] += 1
    first.trainer.run(2)
    with pytest.raises(SettingError, match="another draft vocabulary"):
        tiny_run(tmp_path / "first", target, tiny_dialogues())
