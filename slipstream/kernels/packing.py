"""Weights in oneDNN's own layout. On a CPU, a plain bfloat16 weight is laid out anew at every product, which at a few
rows costs as much as the product itself; packed once at load, the product gives the same result without."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def pack_weight(weight: Tensor) -> Tensor:
    """A projection weight [out, in] in the layout that products like best; the weight itself where there is none.

    A packed weight is opaque: it has a shape, but only `multiply` and `plain_weight` can read it.
    """
    # float32 products of few rows go to MKL, which takes plain weights as they are.
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return weight
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        probe = torch.linspace(-1.0, 1.0, weight.shape[1], dtype=weight.dtype).unsqueeze(0)
        same = torch.allclose(multiply(probe, packed, None), functional.linear(probe, weight), rtol=0.05, atol=0.05)
    except (AttributeError, RuntimeError, TypeError):  # the operators have no promised form; do without them
        return weight
    return packed if same else weight


def plain_weight(weight: Tensor) -> Tensor:
    """The weight [out, in] that `pack_weight` was given, whether it packed it or not."""
    return weight.to_dense() if weight.is_mkldnn else weight


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x @ weight.T + bias` with a plain or packed weight: [N, in] to [N, out]."""
    if weight.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return functional.linear(x, weight, bias)
