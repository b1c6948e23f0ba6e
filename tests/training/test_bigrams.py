"""Bigrams: sums by the token before, and factors that give their lift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from slipstream.training import bigrams as module
from slipstream.training.bigrams import Bigrams, count_bigrams
from slipstream.training.corpus import Dialogue
from slipstream.training.target_states import TokenStates


def _dialogue(ids: Sequence[int], first_answer: int) -> Dialogue:
    return Dialogue(np.array(ids, np.int32), np.arange(len(ids)) >= first_answer, "chat", 0.0)


class SeededStates:
    """States that are a function of the dialogue's number."""

    def __init__(self, dialogues: Sequence[Dialogue], head: torch.Tensor) -> None:
        self._dialogues = dialogues
        self._head = head

    def states(self, numbers: Sequence[int]) -> TokenStates:
        (number,) = numbers
        length = len(self._dialogues[number])
        final = torch.randn(length, 6, generator=torch.Generator().manual_seed(number))
        nothing = torch.zeros(length, 0)
        return TokenStates(nothing, final, (final @ self._head.T).logsumexp(-1), torch.zeros(length))


def test_distributions_are_summed_by_the_token_before_answers() -> None:
    head = torch.randn(9, 6, generator=torch.Generator().manual_seed(9))
    dialogues = [_dialogue([5, 3, 4, 3, 7], 2), _dialogue([8, 3, 3], 1)]
    source = SeededStates(dialogues, head)
    draft_rows = head[[0, 2, 5]]
    found = count_bigrams(dialogues, source, draft_rows, vocab_size=12)
    expected = torch.zeros(12, 3)
    seen = torch.zeros(12)
    for number, dialogue in enumerate(dialogues):
        for place in range(len(dialogue) - 1):
            if dialogue.is_answer[place + 1]:
                shares = (source.states([number]).final[place] @ head.T).softmax(-1)
                expected[dialogue.token_ids[place]] += shares[[0, 2, 5]]
                seen[dialogue.token_ids[place]] += 1
    assert found.token_ids[0] == 3 and set(found.token_ids.tolist()) == {3, 4, 8}
    torch.testing.assert_close(found.shares, expected[found.token_ids])
    assert torch.equal(found.counts, seen[found.token_ids])


def test_factors_give_the_log_lift_where_the_rank_suffices() -> None:
    ids = np.random.default_rng(3).integers(0, 5, 400)
    found = Bigrams([_dialogue(ids, 0)], vocab_size=7, num_drafts=5)
    found.add(torch.from_numpy(ids[:-1]), torch.nn.functional.one_hot(torch.from_numpy(ids[1:]), 5).float())
    w1, w2 = found.factors(6, 7, seed=0, smoothing=1e-4)
    assert w1.shape == (7, 6) and w2.shape == (5, 6)
    counts = np.zeros((5, 5))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    expected = np.log(counts / counts.sum(1, keepdims=True) / (counts.sum(0) / counts.sum()))
    np.testing.assert_allclose((w1 @ w2.T).numpy()[:5], expected, atol=0.01)
    assert not w1[5:].any()  # never seen


def test_one_seed_gives_the_same_factors_and_leaves_the_generator_alone() -> None:
    ids = np.random.default_rng(1).integers(0, 50, 500)
    pair = [Bigrams([_dialogue(ids, 0)], 50, 50) for _ in range(2)]
    for found in pair:
        found.add(torch.from_numpy(ids[:-1]), torch.nn.functional.one_hot(torch.from_numpy(ids[1:]), 50).float())
    before = torch.get_rng_state()
    one, other = (found.factors(8, 50, seed=4) for found in pair)
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert torch.equal(before, torch.get_rng_state())


def test_the_rarest_tokens_are_left_out_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 8)
    found = Bigrams([_dialogue([1, 2, 1, 2, 1, 3, 0], 0)], vocab_size=5, num_drafts=4)
    assert found.token_ids.tolist() == [1, 2]
    found.add(torch.tensor([3, 2]), torch.eye(4)[:2])
    assert found.shares.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]
