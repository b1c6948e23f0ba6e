"""Both ends of a decoder in the native library: rows of the embedding; the final norm and the output projection."""

from __future__ import annotations

import torch
from torch import Tensor

from slipstream.kernels.native.library import InstructionPath, Workers
from slipstream.kernels.native.linear import PackedWeight


class NativeNorm:
    """An RMSNorm of its own rows: weight, float32 [hidden]."""

    def __init__(self, workers: Workers, weight: Tensor, eps: float, path: InstructionPath | None = None) -> None:
        self.weight, self.eps = weight.contiguous(), eps
        self._workers, self._path = workers, workers.library.best_path if path is None else path

    def __call__(self, hidden: Tensor) -> Tensor:
        """float32 [N, hidden], contiguous, to the same."""
        normed = torch.empty_like(hidden)
        handle, library = self._workers.handle, self._workers.library
        library.call("normalize", handle, self._path, hidden, self.weight, *hidden.shape, self.eps, normed)
        return normed


class NativeEnds:
    """An embedding and an output projection [V, hidden], which may be one weight.

    Args:
        norm: of the last layer's output, float32 [hidden].
    """

    def __init__(
        self,
        workers: Workers,
        embedding: PackedWeight,
        head: PackedWeight,
        norm: Tensor,
        eps: float,
        path: InstructionPath | None = None,
    ) -> None:
        self._workers, self._library = workers, workers.library
        self._path = self._library.best_path if path is None else path
        self._embedding, self._head = embedding, head
        self._norm = NativeNorm(workers, norm, eps, path)
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._logits = torch.empty(0)

    def embed(self, token_ids: Tensor) -> Tensor:
        """int64 [N], below V, to float32 [N, hidden]."""
        weight = self._embedding
        x = torch.empty((len(token_ids), weight.shape[1]))
        self._library.call("embed", weight.records, weight.bits, *weight.shape, token_ids, len(token_ids), x)
        return x

    def normalize(self, hidden: Tensor) -> Tensor:
        """float32 [N, hidden] by the norm."""
        return self._norm(hidden.contiguous())

    def project(self, hidden: Tensor) -> Tensor:
        """float32 [N, hidden] by the norm and the projection: [N, V], which the next call writes over.

        Fresh memory would cost a page fault for each of its pages, at every step.
        """
        hidden, head = hidden.contiguous(), self._head
        num_rows, (num_outputs, num_inputs) = len(hidden), head.shape
        if self._logits.numel() < num_rows * num_outputs:
            self._logits = torch.empty(num_rows * num_outputs)
        needed = self._library.call("project_bytes", num_rows, num_inputs)
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        logits = self._logits[: num_rows * num_outputs].view(num_rows, num_outputs)
        self._library.call(
            "project",
            self._workers.handle,
            self._path,
            head.records,
            head.bits,
            num_outputs,
            num_inputs,
            self._norm.weight,
            self._norm.eps,
            hidden,
            num_rows,
            logits,
            self._scratch,
        )
        return logits
