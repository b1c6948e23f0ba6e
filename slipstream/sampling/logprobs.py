"""Log probabilities of the model's own distribution: the raw logits, before bias, temperature and filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.request import Logprobs
from slipstream.sampling.filters import best_positions


def row_logprobs(logits: Tensor, token_id: int, num_alternatives: int) -> Logprobs:
    """Report of one sampled token.

    `logits` is a raw row [V] without NaN and with a finite maximum. Alternatives come likeliest first, equal ones by
    ascending id; tokens of probability 0 are no alternatives. Reductions run over one row at a time, so that the
    figures do not depend on the other rows.
    """
    values = logits.to(torch.float64)
    top = values.amax()
    logprobs = values - (top + (values - top).exp_().sum().log())
    chosen = logprobs[token_id]
    rank = int((values > values[token_id]).sum()) + 1
    alternatives: list[tuple[int, float]] = []
    if num_alternatives:
        ids = best_positions(values, min(num_alternatives, values.shape[0]))
        ids = ids[torch.sort(values[ids], descending=True, stable=True).indices]
        pairs = zip(ids.tolist(), logprobs[ids].tolist(), strict=True)
        alternatives = [(i, logprob) for i, logprob in pairs if logprob > -math.inf]
    return Logprobs(float(chosen), rank, tuple(alternatives))
