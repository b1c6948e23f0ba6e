"""Quantised blocks of a GGUF file as the native kernels take them, without going through floats.

Formats: https://github.com/ggml-org/ggml, blocks of 32 as in ggml-common.h; Q4_0, Q4_1 and Q8_0 are groups of 32 already,
with half-precision scales. Other formats are dequantised and grouped anew (kernels/native/groups.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from slipstream.kernels.native.groups import GROUP, Groups

Bytes = NDArray[np.uint8]
GROUPED = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)


def groups_of(raw: Bytes, kind: GGMLQuantizationType, num_inputs: int) -> Groups:
    """Rows of blocks, uint8 [N, bytes], of a kind in GROUPED."""
    num_groups = num_inputs // GROUP
    blocks = np.ascontiguousarray(raw).reshape(len(raw), num_groups, -1)
    scales = _halves(blocks[..., :2])
    if kind == GGMLQuantizationType.Q8_0:
        values = torch.from_numpy(blocks[..., 2:].view(np.int8).reshape(len(raw), num_inputs).copy())
        return Groups(8, values, scales, None)
    start = 4 if kind == GGMLQuantizationType.Q4_1 else 2
    minima = _halves(blocks[..., 2:4]) if kind == GGMLQuantizationType.Q4_1 else (-8.0 * scales.float()).half()
    packed = blocks[..., start:]
    values = np.concatenate((packed & 15, packed >> 4), axis=-1).reshape(len(raw), num_inputs)
    return Groups(4, torch.from_numpy(values), scales, minima)


def _halves(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).view(np.float16)[..., 0].copy())
