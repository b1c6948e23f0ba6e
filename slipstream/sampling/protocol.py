"""What the sampler leaves to others where it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class RowSampler(Protocol):
    """Gives rows that need nothing but a temperature their tokens, the same ones that `first_argmax` and `GumbelDraw`
    give."""

    def sample(self, logits: Tensor, temperatures: Sequence[float], keys: Sequence[int]) -> list[int]:
        """Tokens of the rows of `logits` [N, V], which is not changed.

        Args:
            logits: float32, on the CPU, contiguous in a row.
            temperatures: 0 takes the likeliest token. keys: of each row's noise (`noise_key`); not read at 0.

        Returns:
            N token ids; -1 for a row that holds NaN or an infinity.
        """
        ...
