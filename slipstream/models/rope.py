"""Rotary position embedding: `default`, `linear` and `llama3` frequencies, in the half-split layout of Hugging Face.

Sources: RoFormer (arXiv 2104.09864); linear scaling, arXiv 2306.15595; llama3, the Llama 3.1 model card.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.models.config import RopeScaling

ROPE_KINDS = ("default", "linear", "llama3")


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    """Radians per token of each pair of dimensions, float32 [head_dim / 2], on the CPU."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling.kind == "default":
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    raise ValueError(f"rope scaling {scaling.kind!r} is not known; the known ones are {', '.join(ROPE_KINDS)}")


def _llama3_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Long wavelengths slowed by `factor`, short ones kept, and a linear blend between the two borders."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)  # full turns within the original context
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / scaling.factor + blend * frequencies


class RotaryTable:
    """Cosines and sines of every position up to the longest one served.

    Made once: computed per step, the last bits of a cosine could depend on its place in the batch.
    """

    def __init__(
        self,
        head_dim: int,
        theta: float,
        scaling: RopeScaling,
        num_positions: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        positions = torch.arange(num_positions, dtype=torch.float32)
        angles = torch.outer(positions, inverse_frequencies(head_dim, theta, scaling))
        cosines, sines = angles.cos(), angles.sin()
        # The second sine is the half-split rotation's minus sign, folded in: x * cos + roll(x, half) * sin.
        table = torch.cat((cosines, cosines, -sines, sines), dim=-1).to(device=device, dtype=dtype)
        self._table = table.view(num_positions, 1, 2 * head_dim)
        self.num_positions = num_positions

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine at positions [N]: each [N, 1, head_dim]."""
        cosine, sine = self._table.index_select(0, positions).chunk(2, dim=-1)
        return cosine.contiguous(), sine.contiguous()


def rotate_(x: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rotate heads x [N, heads, head_dim] in place."""
    turned = x.roll(x.shape[-1] // 2, dims=-1).mul_(sine)
    x.mul_(cosine).add_(turned)
