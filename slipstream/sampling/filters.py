"""Which tokens min_p, top_k and top_p keep, in that order, after temperature (vLLM's order).

Each is a prefix of the tokens sorted by descending logit, equal logits by ascending id. Comparisons decide, and sums
are taken over integers, which are exact in any order: the outcome does not depend on the device, on the number of
threads or on other rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.request import SamplingParams

_WEIGHT_ONE = 2.0**40  # fixed point of the likeliest token's probability weight
_TOLERANCE = 2.0**-30  # relative; a probability this close to a limit counts as reaching it, so 0.4 + 0.35 >= 0.75


def has_filters(params: SamplingParams) -> bool:
    return params.min_p > 0.0 or params.top_k > 0 or params.top_p < 1.0


def kept_tokens(scaled: Tensor, params: SamplingParams) -> Tensor:
    """Ids of the tokens kept, in no order, at least one.

    `scaled` is (logit - top) / T, float64 [V]: 0 for the likeliest token, negative for others, -inf for forbidden ones,
    which may be kept where top_k asks for more tokens than there are.
    """
    ids: Tensor | None = None
    if params.min_p > 0.0:
        ids = torch.nonzero(scaled >= math.log(params.min_p) - _TOLERANCE)[:, 0]
        scaled = scaled[ids]
    if 0 < params.top_k < scaled.shape[0]:
        positions = best_positions(scaled, params.top_k)
        scaled, ids = scaled[positions], positions if ids is None else ids[positions]
    if params.top_p < 1.0:
        positions = _nucleus_positions(scaled, params.top_p)
        ids = positions if ids is None else ids[positions]
    return torch.arange(scaled.shape[0], device=scaled.device) if ids is None else ids


def best_positions(values: Tensor, count: int) -> Tensor:
    """Positions of the `count` largest of `values` [M], ascending; among equals the first ones."""
    least = torch.topk(values, count).values[-1]
    above = torch.nonzero(values > least)[:, 0]
    equal = torch.nonzero(values == least)[:, 0]
    return torch.cat([above, equal[: count - above.shape[0]]]).sort().values


def _nucleus_positions(scaled: Tensor, top_p: float) -> Tensor:
    """Positions of the smallest sorted prefix whose share of the probability reaches top_p."""
    weights = (scaled.exp() * _WEIGHT_ONE).round_().to(torch.int64)
    total = int(weights.sum())
    needed = math.floor(total * (top_p - _TOLERANCE))
    # Tokens below this weight sum to less than what may be left out, so the prefix ends before them: no need to sort
    # a whole vocabulary.
    floor = (total - needed) // weights.shape[0]
    positions = torch.nonzero(weights >= floor)[:, 0]
    order = torch.sort(scaled[positions], descending=True, stable=True).indices
    reached = torch.cumsum(weights[positions[order]], dim=0)
    count = int((reached < needed).sum()) + 1
    return positions[order[:count]]
