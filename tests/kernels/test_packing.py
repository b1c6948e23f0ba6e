"""Packed weights give the products of plain ones, and do without where PyTorch has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels import packing
from slipstream.kernels.packing import multiply, pack_weight


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 16, 100])
@pytest.mark.parametrize("shape", [(96, 64), (267, 96), (33, 97)])
def test_products_equal_the_plain_weights(dtype: torch.dtype, rows: int, shape: tuple[int, int]) -> None:
    weight, bias = random(*shape, seed=0, dtype=dtype), random(shape[0], seed=1, dtype=dtype)
    x = random(rows, shape[1], seed=2, dtype=dtype)
    packed = pack_weight(weight)
    assert packed.shape == weight.shape
    for added in (None, bias):
        torch.testing.assert_close(multiply(x, packed, added), functional.linear(x, weight, added))


def test_float32_stays_plain() -> None:
    weight = random(8, 4, seed=0, dtype=torch.float32)
    assert pack_weight(weight) is weight


@pytest.mark.parametrize("fault", [RuntimeError("no such operator"), AttributeError("gone"), TypeError("new form")])
def test_a_pytorch_without_the_operators_keeps_plain_weights(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def broken(*_: object) -> Tensor:
        raise fault

    monkeypatch.setattr(packing, "multiply", broken)
    weight = random(8, 4, seed=0, dtype=torch.bfloat16)
    assert pack_weight(weight) is weight


def test_a_packed_weight_that_gives_other_products_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "multiply", lambda x, weight, bias: torch.zeros(x.shape[0], weight.shape[0]).to(x))
    weight = random(8, 4, seed=0, dtype=torch.bfloat16)
    assert pack_weight(weight) is weight
