"""The training loss of drafts, without ever holding the logits of a whole batch.

Per draft, with p_d the drafter's distribution over the draft vocabulary (Markov bias included) and p_t the target's,
both at temperature 1: cross-entropy with the token of the text, the L1 distance |p_d - p_t| (twice the total
variation, 0 to 2; target mass outside the draft vocabulary counts), and optionally the divergence KL(p_t, p_d) over
the draft vocabulary. Source of the first two: DSpark (arXiv 2607.05147).

A chunk of rows at a time, so that logits stay in the processor's cache: products, softmax, loss and gradient of the
chunk, then the next. At a vocabulary of thousands, memory traffic costs more than the products otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.training.settings import LossWeights

CHUNK_ROWS = 128


@dataclass(frozen=True, slots=True)
class TargetRows:
    """What the target says of M drafts.

    Attributes:
        hidden: final hidden state, normed, that predicts the draft, [M, d].
        log_normalisers: log of the sum of exp(logits) over the *whole* vocabulary, float32 [M].
        labels: the text's token as a draft id, int64 [M]; -1 where it is outside the draft vocabulary.
        choices: the target's likeliest token of its whole vocabulary, likewise.
    """

    hidden: Tensor
    log_normalisers: Tensor
    labels: Tensor
    choices: Tensor


@dataclass(frozen=True, slots=True)
class DraftLoss:
    """Of M drafts.

    Attributes:
        total: the weighted sum, with gradient.
        cross_entropy, l1, kl: per draft, float32 [M], without gradient. Cross-entropy is 0 without a label.
        is_match: drafter and target have the same likeliest token, bool [M].
    """

    total: Tensor
    cross_entropy: Tensor
    l1: Tensor
    kl: Tensor
    is_match: Tensor


def draft_loss(
    hidden: Tensor,
    markov_features: Tensor | None,
    markov_weight: Tensor | None,
    head: Tensor,
    target: TargetRows,
    weights: Tensor,
    parts: LossWeights,
) -> DraftLoss:
    """Loss of M drafts.

    Args:
        hidden: the drafter's, [M, d]. head: [V_d, d], not trained.
        markov_features, markov_weight: [M, r] and [V_d, r]; None without a Markov head.
        weights: of each draft, float32 [M].
    """
    outputs = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden, markov_features, markov_weight, head, target, weights, parts
    )
    return DraftLoss(*outputs)


class _ChunkedLoss(torch.autograd.Function):
    """Gradients are computed with the loss, and only scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        features: Tensor | None,
        markov: Tensor | None,
        head: Tensor,
        target: TargetRows,
        weights: Tensor,
        parts: LossWeights,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        count = len(hidden)
        kind = head.dtype
        cross_entropy, l1, kl = (torch.zeros(count, device=hidden.device) for _ in range(3))
        is_match = torch.zeros(count, dtype=torch.bool, device=hidden.device)
        grad_hidden = torch.empty_like(hidden)
        grad_features = None if features is None else torch.empty_like(features)
        grad_markov = None if markov is None else torch.zeros(markov.shape, device=hidden.device)
        bias_weight = None if markov is None else markov.to(kind)
        for start in range(0, count, CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            logits = (hidden[rows].to(kind) @ head.T).float()
            if features is not None and bias_weight is not None:
                logits += features[rows].to(kind) @ bias_weight.T
            chunk = _chunk(logits, (target.hidden[rows].to(kind) @ head.T).float(), target, rows, weights[rows], parts)
            cross_entropy[rows], l1[rows], kl[rows], is_match[rows], gradient = chunk
            gradient = gradient.to(kind)
            grad_hidden[rows] = gradient @ head
            if features is not None and grad_features is not None:
                assert bias_weight is not None and grad_markov is not None
                grad_features[rows] = (gradient @ bias_weight).to(grad_features.dtype)
                grad_markov += gradient.T @ features[rows].to(kind)
        ctx.gradients = (grad_hidden, grad_features, grad_markov)
        ctx.mark_non_differentiable(cross_entropy, l1, kl, is_match)
        total = (weights * (parts.cross_entropy * cross_entropy + parts.l1 * l1 + parts.kl * kl)).sum()
        return total, cross_entropy, l1, kl, is_match

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        scaled = tuple(None if grad is None else grad * gradients[0] for grad in ctx.gradients)
        return (*scaled, None, None, None, None)


def _chunk(
    logits: Tensor, target_logits: Tensor, target: TargetRows, rows: slice, weights: Tensor, parts: LossWeights
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy, L1, KL, match, and the gradient of the weighted sum for the logits, of some rows."""
    labels = target.labels[rows]
    log_shares = target_logits - target.log_normalisers[rows, None]
    shares = log_shares.exp()
    inside = shares.sum(dim=-1)  # target mass within the draft vocabulary
    log_sum = logits.logsumexp(dim=-1)
    matches = logits.argmax(dim=-1) == target.choices[rows]
    chances = (logits - log_sum[:, None]).exp_()
    difference = chances - shares
    l1 = difference.abs().sum(dim=-1) + (1.0 - inside).clamp(min=0.0)
    known = labels >= 0
    picked = labels.clamp(min=0)[:, None]
    cross_entropy = torch.where(known, log_sum - logits.gather(1, picked)[:, 0], 0.0)
    # The gradient of a function of p_d: p_d * (s - <p_d, s>), s = sign(p_d - p_t) for L1.
    signs = difference.sign_()
    mean_sign = (chances * signs).sum(dim=-1, keepdim=True)
    gradient = (signs - mean_sign) * parts.l1
    entropy_weight = parts.cross_entropy * known.float()[:, None]
    soft = parts.kl * inside[:, None]
    gradient = (gradient + entropy_weight + soft) * chances
    gradient.scatter_add_(1, picked, -entropy_weight)
    kl = torch.zeros_like(l1)
    if parts.kl:
        kl = (shares * (log_shares - logits + log_sum[:, None])).sum(dim=-1)
        gradient -= parts.kl * shares
    return cross_entropy, l1, kl, matches, gradient * weights[:, None]
