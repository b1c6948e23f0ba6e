"""What a token says of the next, by the target's own distributions: where a Markov head starts from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.training.corpus import Dialogue
from slipstream.training.target_states import StateSource

MAX_ENTRIES = 1 << 28
"""Shares that are held at once, 4 bytes each; rarer tokens beyond them are left out."""

_NUM_ITERATIONS = 4


class Bigrams:
    """Sums of the target's distributions by the token before.

    Attributes:
        token_ids: the tokens that were seen before an answer's token, most frequent first, [M].
        shares: sum of the target's distributions after each of them, over the draft vocabulary, float32 [M, V_d].
        counts: how many distributions that are, [M].
    """

    def __init__(self, dialogues: Sequence[Dialogue], vocab_size: int, num_drafts: int) -> None:
        """Count what `dialogues` hold; `add` then takes each of them."""
        counts = np.zeros(vocab_size, np.int64)
        for dialogue in dialogues:
            counts += np.bincount(dialogue.token_ids[asks(dialogue)], minlength=vocab_size)
        order = np.argsort(-counts, kind="stable")[: max(MAX_ENTRIES // num_drafts, 1)]
        self.token_ids = torch.from_numpy(order[counts[order] > 0])
        self.counts = torch.from_numpy(counts)[self.token_ids].float()
        self.shares = torch.zeros(len(self.token_ids), num_drafts)
        self._row_of = torch.full((vocab_size,), -1)
        self._row_of[self.token_ids] = torch.arange(len(self.token_ids))

    def add(self, token_ids: Tensor, distributions: Tensor) -> None:
        """Distributions [N, V_d] of the tokens that follow `token_ids` [N]."""
        rows = self._row_of[token_ids]
        kept = rows >= 0
        self.shares.index_add_(0, rows[kept], distributions[kept])

    def factors(self, rank: int, vocab_size: int, *, seed: int, smoothing: float = 4.0) -> tuple[Tensor, Tensor]:
        """w1 [vocab_size, rank] and w2 [V_d, rank], whose product is about log p(next | token) - log p(next).

        Each token's shares are mixed with `smoothing` times the overall ones, and weigh as often as it was seen. A
        token never seen has 0: no effect. `shares` is used up: the work is done in its memory.
        """
        overall = self.shares.sum(dim=0) + 1e-3
        overall /= overall.sum()
        weights = self.counts[:, None].sqrt()
        lifts = self.shares.add_(smoothing * overall).div_(self.counts[:, None] + smoothing)
        lifts.div_(overall).log_().mul_(weights)
        rank_found = min(rank, *lifts.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            left, values, right = torch.svd_lowrank(lifts, q=rank_found, niter=_NUM_ITERATIONS)
        w1, w2 = torch.zeros(vocab_size, rank), torch.zeros(lifts.shape[1], rank)
        w2[:, :rank_found] = right * values.sqrt()
        w1[self.token_ids, :rank_found] = left * values.sqrt() / weights
        return w1, w2


def asks(dialogue: Dialogue) -> NDArray[np.int64]:
    """Positions whose next token the target wrote."""
    return np.flatnonzero(dialogue.is_answer[1:])


@torch.no_grad()
def count_bigrams(dialogues: Sequence[Dialogue], source: StateSource, head: Tensor, vocab_size: int) -> Bigrams:
    """Bigrams of dialogues 0, 1, … of `source`. head: rows of the target's head for the draft vocabulary, [V_d, d]."""
    bigrams = Bigrams(dialogues, vocab_size, len(head))
    for number, dialogue in enumerate(dialogues):
        places = torch.from_numpy(asks(dialogue))
        states = source.states([number])
        there = places.to(states.final.device)
        logits = (states.final[there].to(head.dtype) @ head.T).float()
        distributions = (logits - states.log_normalisers[there, None]).exp_()
        bigrams.add(torch.from_numpy(dialogue.token_ids).long()[places], distributions.cpu())
    return bigrams
