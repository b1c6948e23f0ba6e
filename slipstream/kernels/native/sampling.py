"""Sampling in the native library: argmax and Gumbel-max draws over the vocabulary where the logits lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.kernels.native.library import InstructionPath, Workers
from slipstream.sampling.noise import key_tensor, token_constants


class NativeRowSampler:
    """A RowSampler (sampling/protocol.py) over one vocabulary. Its twin is what sampling/sampler.py does without it.

    Args:
        path: which instructions; None takes the fastest that this processor has.
    """

    def __init__(self, workers: Workers, vocab_size: int, path: InstructionPath | None = None) -> None:
        self._workers = workers
        self._path = workers.library.best_path if path is None else path
        self._constants = token_constants(vocab_size, "cpu")

    def sample(self, logits: Tensor, temperatures: Sequence[float], keys: Sequence[int]) -> list[int]:
        """See RowSampler."""
        num_rows, vocab_size = logits.shape
        if vocab_size != len(self._constants):
            raise ValueError(f"logits of {vocab_size} tokens; this sampler's vocabulary has {len(self._constants)}")
        token_ids = torch.empty(num_rows, dtype=torch.int32)
        self._workers.library.call(
            "sample",
            self._workers.handle,
            self._path,
            logits,
            num_rows,
            vocab_size,
            logits.stride(0),
            torch.tensor(temperatures, dtype=torch.float64),
            key_tensor(list(keys), "cpu"),
            self._constants,
            token_ids,
        )
        return token_ids.tolist()
