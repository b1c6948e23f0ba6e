"""Row kernels at PyTorch's own speed. The blocking of its matrix products follows the number of rows, so the last bits
of a row may change with the batch around it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from slipstream.kernels.packing import multiply


class FastKernels:
    """RowKernels over whole batches."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return multiply(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        width = gate_up.shape[-1] // 2
        return functional.silu(gate_up[..., :width]).mul_(gate_up[..., width:])
