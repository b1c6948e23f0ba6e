"""Weights in groups of 32 inputs with a scale each, of four or eight bits: what a GGUF file holds, or made from floats.

A product with such a weight is an integer product inside each group, and the groups are added in their order. Rows are
quantised to signed bytes the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32


@dataclass(frozen=True, slots=True)
class Groups:
    """A weight [N, K]; K is a multiple of 32.

    Attributes:
        bits: 4: w = scale * q + minimum, q from 0 to 15. 8: w = scale * q, q from -128 to 127.
        values: q, uint8 or int8 [N, K].
        scales: float16 [N, K / 32]. minima: the same; None with 8 bits.
    """

    bits: int
    values: Tensor
    scales: Tensor
    minima: Tensor | None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1]

    def rows(self, index: Tensor) -> Groups:
        """Some outputs, in the order of `index` [n]."""
        minima = None if self.minima is None else self.minima[index]
        return Groups(self.bits, self.values[index], self.scales[index], minima)

    def elements(self, index: Tensor) -> Tensor:
        """float32, at places of the flattened weight, `index` [n]."""
        group = index // GROUP
        values = self.values.flatten()[index].float() * self.scales.flatten()[group].float()
        return values if self.minima is None else values + self.minima.flatten()[group].float()

    def dense(self) -> Tensor:
        """float32 [N, K]."""
        groups = self.values.view(len(self.values), -1, GROUP).float() * self.scales.float()[..., None]
        if self.minima is not None:
            groups = groups + self.minima.float()[..., None]
        return groups.view(self.values.shape)


StoredWeight = Tensor | Groups
"""A weight as a model's file has it."""


def group_weight(weight: Tensor) -> Groups:
    """The nearest eight-bit groups of a float weight [N, K]. Raises ValueError for a K that is no multiple of 32."""
    if weight.shape[1] % GROUP:
        raise ValueError(f"groups of {GROUP} inputs do not fit {weight.shape[1]} inputs")
    groups = weight.float().view(len(weight), -1, GROUP)
    scales = (groups.abs().amax(-1) / 127.0).to(torch.float16)
    divisors = scales.float().clamp_min(1e-30)[..., None]
    values = (groups / divisors).round().clamp(-127, 127).to(torch.int8)
    return Groups(8, values.view(weight.shape), scales, None)


def joined(parts: list[Groups]) -> Groups | None:
    """Their outputs one after the other; None where their bits differ."""
    if len({part.bits for part in parts}) > 1:
        return None
    minima = None if parts[0].minima is None else torch.cat([part.minima for part in parts if part.minima is not None])
    return Groups(parts[0].bits, torch.cat([p.values for p in parts]), torch.cat([p.scales for p in parts]), minima)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows [M, K] as the product takes them: x = scale * q.

    Attributes:
        values: int8 [M, K]. scales: float32 [M, K / 32]. sums: of the values of each group, int32 [M, K / 32].
    """

    values: Tensor
    scales: Tensor
    sums: Tensor


def quantize_rows(x: Tensor) -> QuantizedRows:
    """The twin of the native one: [M, K] float32, bit for bit."""
    groups = x.view(x.shape[0], x.shape[1] // GROUP, GROUP)
    largest = groups.abs().amax(-1)
    is_some = largest > 1e-30
    # Not `127.0 / largest`: PyTorch makes a reciprocal and a product of that.
    inverse = torch.where(is_some, torch.full_like(largest, 127.0) / largest, torch.zeros_like(largest))
    values = torch.nan_to_num((groups * inverse[..., None]).round(), nan=0.0, posinf=0.0, neginf=0.0)
    scales = torch.where(is_some, largest / 127.0, torch.zeros_like(largest))
    is_finite = groups.isfinite().all(-1)
    values = torch.where(is_finite[..., None], values, torch.zeros_like(values))
    scales = torch.where(is_finite, scales, torch.full_like(scales, torch.nan))
    return QuantizedRows(values.to(torch.int8).view(x.shape), scales, values.sum(-1).to(torch.int32))


def multiply_groups(x: Tensor, weight: Groups, bias: Tensor | None = None) -> Tensor:
    """The twin of the native product: [M, K] to [M, N] float32.

    The integers are the same; the groups' floats are added by PyTorch, so the last bits may differ.
    """
    rows = quantize_rows(x)
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    output = torch.zeros((num_rows, num_outputs))
    left = rows.values.view(num_rows, x.shape[1] // GROUP, GROUP).float()
    right = weight.values.view(num_outputs, -1, GROUP).float()
    for group in range(left.shape[1]):
        dots = left[:, group] @ right[:, group].T  # whole numbers below 2^24
        scale = rows.scales[:, group, None]
        output += dots * (weight.scales[:, group].float() * scale)
        if weight.minima is not None:
            output += weight.minima[:, group].float() * (scale * rows.sums[:, group, None])
    return output if bias is None else output + bias
