"""How often drafts are accepted, in closed form: an oracle for tests, and what the documentation states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def coupled_match_probability(target: Sequence[float], draft: Sequence[float]) -> float:
    """Chance that two Gumbel-max draws with the same noise, from `target` and from `draft`, give the same token.

    match = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), over tokens i possible in both. Token i wins both draws when
    E_i <= E_j min(p_i / p_j, q_i / q_j) for all j, with E exponential; that minimum over j is exponential too. At least
    (1 - TV) / (1 + TV), where the textbook rejection rule accepts 1 - TV.
    """
    pairs = list(zip(target, draft, strict=True))
    return sum(
        1.0 / sum(max(p_other / p, q_other / q) for p_other, q_other in pairs) for p, q in pairs if p > 0.0 and q > 0.0
    )


def rejection_match_probability(target: Sequence[float], draft: Sequence[float]) -> float:
    """Chance that the textbook rejection rule accepts a draft drawn from `draft`: sum_i min(p_i, q_i) = 1 - TV."""
    return sum(min(p, q) for p, q in zip(target, draft, strict=True))


def coupled_match_probabilities(target: Tensor, draft: Tensor) -> Tensor:
    """The same for N pairs of distributions over whole vocabularies, float64 [N].

    Sorted by q / p, the larger of the two ratios is p_j / p_i for all j before i and q_j / q_i from i on, so prefix
    sums replace the double sum: term i is p_i q_i / (p_i Q_i + q_i P_i), with Q_i the sum of q from i on and P_i that
    of p before i.

    Args:
        target: [N, V_d], chances of the tokens that can be drafted; what they lack to 1 lies on other tokens.
        draft: [N, V_d], sums to 1.
    """
    target, draft = target.double(), draft.double()
    order = torch.where(target > 0.0, draft / target, math.inf).argsort(dim=-1)
    p, q = target.gather(-1, order), draft.gather(-1, order)
    never_drafted = (1.0 - p.sum(-1, keepdim=True)).clamp(min=0.0)
    before = never_drafted + p.cumsum(-1) - p
    onward = q.flip(-1).cumsum(-1).flip(-1)
    terms = p * q / (p * onward + q * before)
    return torch.where((p > 0.0) & (q > 0.0), terms, 0.0).sum(-1)
