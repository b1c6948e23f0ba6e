"""What a block is made of, and what it starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from speculation.tiny_drafters import tiny_drafter_config
from training.training_rig import tiny_dialogues, tiny_run, tiny_target

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.attention.pattern import AttentionPattern
from slipstream.speculation.drafter_config import DrafterConfig, RowLayout
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.training.block_attention import BlockAttention
from slipstream.training.blocks import build_blocks, choose_anchors
from slipstream.training.corpus import Dialogue
from slipstream.training.initial_weights import fill_random
from slipstream.training.target_states import BLOCK_SIZE, TargetReader

IDS = np.arange(100, 110, dtype=np.int32)
ANSWER = np.array([0, 0, 0, 1, 1, 1, 1, 0, 1, 1], bool)


def config_of(layout: RowLayout, block_size: int) -> DrafterConfig:
    return tiny_drafter_config(layout=layout, block_size=block_size)


def test_anchors_are_answer_tokens_with_an_answer_token_behind_them() -> None:
    dialogue = Dialogue(IDS, ANSWER)
    assert choose_anchors(dialogue, 99, (1,)).tolist() == [3, 4, 5, 8]
    drawn = [choose_anchors(dialogue, 2, (1, i)).tolist() for i in range(40)]
    assert {len(anchors) for anchors in drawn} == {2}
    assert {p for anchors in drawn for p in anchors} == {3, 4, 5, 8}
    assert drawn == [choose_anchors(dialogue, 2, (1, i)).tolist() for i in range(40)]


@pytest.mark.parametrize(("layout", "rows"), [(RowLayout.ANCHOR_FIRST, 3), (RowLayout.FILL_IN, 4)])
def test_blocks_of_both_layouts_predict_the_three_tokens_after_the_anchor(layout: RowLayout, rows: int) -> None:
    config = config_of(layout, rows)
    first = Dialogue(np.arange(50, 55, dtype=np.int32), np.ones(5, bool))
    batch = build_blocks(config, [first, Dialogue(IDS, ANSWER)], [np.array([0]), np.array([4, 5, 8])])
    mask = config.mask_token_id
    assert batch.row_token_ids.view(4, rows)[1].tolist() == [104, *[mask] * (rows - 1)]
    assert batch.row_positions.view(4, rows)[1].tolist() == list(range(4, 4 + rows))
    assert batch.labels[1].tolist() == [105, 106, 107]
    assert batch.previous[1].tolist() == [104, 105, 106]
    assert batch.source_tokens[1].tolist() == [5 + 4, 5 + 5, 5 + 6]
    # 107 is the user's: it and all behind it do not count, though 108 is an answer again.
    assert batch.is_counted.tolist() == [
        [True, True, True],
        [True, True, False],
        [True, False, False],
        [True, False, False],
    ]
    assert batch.labels[0].tolist() == [51, 52, 53]
    assert batch.context_positions.tolist() == [*range(5), *range(10)]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_rows_see_the_context_before_their_anchor_and_their_own_block_only(window: int | None, is_causal: bool) -> None:
    pattern = AttentionPattern(is_causal=is_causal, window=window)
    config = replace(config_of(RowLayout.ANCHOR_FIRST, 2), patterns=(pattern,))
    other = Dialogue(np.arange(50, 54, dtype=np.int32), np.ones(4, bool))
    dialogues, anchors = [other, Dialogue(IDS, ANSWER)], [np.array([1, 2]), np.array([4, 8])]
    batch = build_blocks(config, dialogues, anchors)
    make = torch.Generator().manual_seed(1)
    tokens, rows = 14, 8

    def heads(count: int, number: int) -> torch.Tensor:
        return torch.randn(count, number, config.head_dim, generator=make)

    context, query, own = heads(tokens, 2 * config.num_kv_heads), heads(rows, config.num_heads), heads(rows, 4)
    found = BlockAttention(config, batch, [context])(0, query, own)
    group = config.num_heads // config.num_kv_heads
    for block, (offset, anchor) in enumerate([(0, 1), (0, 2), (4, 4), (4, 8)]):
        for row in (0, 1):
            seen = [offset + t for t in range(0 if window is None else max(anchor - window, 0), anchor)]
            mine = [2 * block + r for r in ((0, 1) if not is_causal else range(row + 1))]
            both = torch.cat((context[seen], own[mine]))
            for head in range(config.num_heads):
                keys, values = both[:, head // group], both[:, config.num_kv_heads + head // group]
                weights = (keys @ query[2 * block + row, head] / config.head_dim**0.5).softmax(0)
                torch.testing.assert_close(found[2 * block + row, head], weights @ values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_layers_taken_from_the_target_begin_with_its_own_context_keys_and_values(
    tmp_path: Path, architecture: str
) -> None:
    target = tiny_target(tmp_path, architecture=architecture)
    run = tiny_run(tmp_path / "run", target, tiny_dialogues(6), target_layers=(0, 1), from_layers=(1,), num_layers=1)
    model = run.trainer.block_pass.model
    dialogue = tiny_dialogues(1, seed=9)[0]
    states = TargetReader(target.decoder, (0, 1)).read([dialogue])
    with torch.no_grad():
        rotary = model.make_rotary(64).at(torch.arange(len(dialogue)))
        found = model.context_key_values(model.context_features(states.tapped), rotary)[0]
    blocks = -(-len(dialogue) // BLOCK_SIZE)
    cache = target.decoder.make_cache(blocks, BLOCK_SIZE)
    request = AttentionRequest(0, len(dialogue), 0, list(range(blocks)))
    metadata = build_metadata([request], BLOCK_SIZE, cache.scratch_block, target.decoder.device)
    target.decoder.forward(torch.from_numpy(dialogue.token_ids).long(), metadata, cache)
    expected = cache.gather(1, torch.arange(blocks))[:].reshape(-1, *found.shape[1:])[: len(dialogue)]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_second_layer_taken_from_the_target_is_made_for_the_first_ones_norm(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    run = tiny_run(tmp_path / "run", target, tiny_dialogues(6), target_layers=(0, 1), from_layers=(1, 2))
    first, second = run.trainer.block_pass.model.drafter_layers()
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))
    for layer, number in ((first, 1), (second, 2)):
        prefix = f"model.layers.{number}."
        expected = (x * target.weights[prefix + "input_layernorm.weight"]) @ target.weights[
            prefix + "self_attn.v_proj.weight"
        ].T
        found = (x * layer.input_layernorm.weight) @ layer.self_attn.v_proj.weight.T
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_random_weights_leave_the_heads_without_effect() -> None:
    config = tiny_drafter_config()
    model = DrafterModel(config)
    fill_random(model, 1)
    assert model.markov_head is not None and model.confidence_head is not None
    assert not model.markov_head.markov_w2.weight.any() and model.markov_head.markov_w1.weight.any()
    assert not model.confidence_head.proj.weight.any()
    other = DrafterModel(config)
    fill_random(other, 2)
    assert not torch.equal(model.fc.weight, other.fc.weight)


def test_states_do_not_depend_on_who_shares_the_pass(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    dialogues = tiny_dialogues(5)
    together = TargetReader(target.decoder, (0, 2)).read(dialogues)
    alone = [TargetReader(target.decoder, (0, 2), max_rows=1).read([dialogue]) for dialogue in dialogues]
    assert TargetReader(target.decoder, (0,), max_rows=1).groups(dialogues) == [[0], [1], [2], [3], [4]]
    for name in ("tapped", "final", "log_normalisers"):
        joined = torch.cat([getattr(states, name) for states in alone])
        torch.testing.assert_close(getattr(together, name), joined, atol=1e-4, rtol=1e-4)
    logits = together.final @ target.weights["model.embed_tokens.weight"].T
    wanted = torch.cat([torch.from_numpy(d.is_answer).roll(-1) for d in dialogues])
    torch.testing.assert_close(together.log_normalisers[wanted], logits.logsumexp(-1)[wanted], atol=1e-4, rtol=1e-4)
    assert torch.equal(together.choices[wanted], logits.argmax(-1)[wanted])
