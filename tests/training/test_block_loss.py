"""The chunked loss against the same formulas on whole tensors, differentiated by autograd."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from slipstream.training import block_loss
from slipstream.training.block_loss import TargetRows, draft_loss
from slipstream.training.settings import LossWeights

M, D, R, V_T, V_D = 11, 6, 3, 40, 17


def plain_loss(hidden, features, markov, head, full_head, draft_ids, target_hidden, labels, weights, parts):
    """Whole tensors, full target vocabulary."""
    logits = hidden @ head.T + (0 if features is None else features @ markov.T)
    chances = logits.softmax(-1)
    target = (target_hidden @ full_head.T).softmax(-1)
    spread = torch.zeros(M, V_T).index_add(1, draft_ids, chances)
    l1 = (spread - target).abs().sum(-1)
    known = labels >= 0
    entropy = functional.cross_entropy(logits, labels.clamp(min=0), reduction="none") * known
    shares = target[:, draft_ids]
    kl = (shares * (shares.log() - chances.log())).sum(-1)
    match = draft_ids[logits.argmax(-1)] == target.argmax(-1)
    total = (weights * (parts.cross_entropy * entropy + parts.l1 * l1 + parts.kl * kl)).sum()
    return total, entropy, l1, kl, match


@pytest.mark.parametrize("has_markov", [True, False])
@pytest.mark.parametrize("parts", [LossWeights(), LossWeights(cross_entropy=0.3, l1=0.0, kl=0.7), LossWeights(kl=0.2)])
def test_loss_and_gradients_are_those_of_the_plain_formulas(monkeypatch, has_markov: bool, parts: LossWeights) -> None:
    monkeypatch.setattr(block_loss, "CHUNK_ROWS", 4)  # the last chunk is a short one
    make = torch.Generator().manual_seed(3)
    draft_ids = torch.randperm(V_T, generator=make)[:V_D].sort().values
    full_head = torch.randn(V_T, D, generator=make)
    values = {
        "hidden": torch.randn(M, D, generator=make),
        "features": torch.randn(M, R, generator=make),
        "markov": torch.randn(V_D, R, generator=make),
    }
    target_hidden, weights = 2 * torch.randn(M, D, generator=make), torch.rand(M, generator=make)
    labels = torch.randint(-1, V_D, (M,), generator=make)
    labels[2] = -1
    results = []
    for is_plain in (True, False):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        features, markov = (leaves["features"], leaves["markov"]) if has_markov else (None, None)
        if is_plain:
            arguments = (full_head[draft_ids], full_head, draft_ids, target_hidden, labels, weights, parts)
            result = plain_loss(leaves["hidden"], features, markov, *arguments)
            total = result[0]
        else:
            normalisers = (target_hidden @ full_head.T).logsumexp(-1)
            rank = torch.full((V_T,), -1)
            rank[draft_ids] = torch.arange(V_D)
            choices = rank[(target_hidden @ full_head.T).argmax(-1)]
            rows = TargetRows(target_hidden, normalisers, labels, choices)
            loss = draft_loss(leaves["hidden"], features, markov, full_head[draft_ids], rows, weights, parts)
            total, kl = loss.total, loss.kl if parts.kl else result[3]
            result = (total, loss.cross_entropy, loss.l1, kl, loss.is_match)
        (3.0 * total).backward()
        results.append((result, [leaves[name].grad for name in values]))
    for plain, chunked in zip(results[0][0][:4], results[1][0][:4], strict=True):
        torch.testing.assert_close(chunked, plain, atol=2e-5, rtol=2e-5)
    assert torch.equal(results[1][0][4], results[0][0][4])
    assert results[0][0][4].any()
    for plain, chunked in zip(results[0][1], results[1][1], strict=True):
        assert (plain is None) == (chunked is None)
        if plain is not None:
            torch.testing.assert_close(chunked, plain, atol=2e-5, rtol=2e-5)
