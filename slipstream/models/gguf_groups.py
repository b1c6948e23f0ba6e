"""Quantised blocks of a GGUF file as the native kernels take them, without going through floats.

Formats: https://github.com/ggml-org/ggml, blocks of 32 as in ggml-common.h; Q4_0, Q4_1 and Q8_0 are groups of 32
already, with half-precision scales. Other formats are dequantised and grouped anew (kernels/native/groups.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from slipstream.kernels.native.groups import GROUP, Groups, StoredWeight
from slipstream.models.config import DecoderConfig
from slipstream.models.gguf_file import GGUFFile
from slipstream.models.gguf_model import half_split_rows, hf_name, paired_heads, weight_names

Bytes = NDArray[np.uint8]
GROUPED = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)


def read_gguf_groups(file: GGUFFile, config: DecoderConfig) -> Iterator[tuple[str, StoredWeight]]:
    """Name and groups of each weight, one at a time; float32 values of one that is stored in another form."""
    for name in weight_names(file):
        tensor = file.tensors[name]
        heads = paired_heads(name, config)
        is_grouped = tensor.kind in GROUPED and len(tensor.shape) == 2
        weight: StoredWeight
        if is_grouped:
            weight = groups_of(file.blocks(name), tensor.kind, tensor.shape[1])
        else:
            weight = torch.from_numpy(file.read(name))
        if heads is not None:
            order = torch.from_numpy(half_split_rows(np.arange(tensor.shape[0]), heads))
            weight = weight.rows(order) if isinstance(weight, Groups) else weight[order]
        yield hf_name(name), weight
    file.forget_pages()


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
    unpacked = np.concatenate((packed & 15, packed >> 4), axis=-1).reshape(len(raw), num_inputs)
    return Groups(4, torch.from_numpy(unpacked), scales, minima)


def _halves(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values).view(np.float16)[..., 0].copy())
