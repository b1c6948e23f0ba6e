"""A constraint's bit mask on a row of logits."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from slipstream.scheduler.protocol import ConstraintError


def constrained(logits: Tensor, allowed: bytes) -> Tensor:
    """A row [V] in which only allowed tokens are possible (see TokenMatcher.allowed); a new tensor.

    If the model gives all of them no chance, they are equally likely.

    Raises:
        ConstraintError: none of the V tokens is allowed.
    """
    vocab_size = logits.shape[0]
    bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), bitorder="little", count=vocab_size)
    if not bits.any():
        raise ConstraintError("no token of this model's vocabulary fits what the request asks for here")
    mask = torch.from_numpy(bits.view(np.bool_)).to(logits.device)
    kept = torch.where(mask, logits, -math.inf)
    if bool(torch.isneginf(kept.amax())):
        kept = torch.where(mask, 0.0, -math.inf).to(logits.dtype)
    return kept
