"""What a decoder asks of its arithmetic: functions of rows, each output row from its input row alone."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class RowKernels(Protocol):
    """Row-wise operations. Inputs are not changed; outputs are new tensors in the input's dtype."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`: [N, in] and [out, in] (plain or from `pack_weight`) to [N, out]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """Divide by the root mean square over the last dimension, then scale; x is [N, ..., width]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SwiGLU: [N, 2 * width] to silu(first half) * second half, [N, width]."""
        ...
