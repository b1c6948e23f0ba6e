"""Products by the native library."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.native.groups import GROUP, Groups, QuantizedRows
from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [N, K] in the records that the kernels read (source/format.h).

    Attributes:
        records: uint8.
    """

    bits: int
    shape: tuple[int, int]
    records: Tensor


def pack(library: NativeLibrary, weight: Groups) -> PackedWeight:
    """Lay a weight out for the kernels; copies it."""
    num_outputs, num_inputs = weight.shape
    records = torch.empty(library.call("packed_bytes", weight.bits, num_outputs, num_inputs), dtype=torch.uint8)
    values, scales = weight.values.contiguous(), weight.scales.contiguous()
    if weight.minima is None:
        library.call("pack_eight", values, scales, num_outputs, num_inputs, records)
    else:
        library.call("pack_four", values, scales, weight.minima.contiguous(), num_outputs, num_inputs, records)
    return PackedWeight(weight.bits, weight.shape, records)


class NativeLinear:
    """Quantises rows and multiplies them.

    Args:
        path: which instructions; None takes the fastest that this processor has.
    """

    def __init__(self, workers: Workers, path: InstructionPath | None = None) -> None:
        self.workers = workers
        self.library = workers.library
        self.path = self.library.best_path if path is None else path

    def quantize(self, x: Tensor) -> QuantizedRows:
        """[M, K] float32, contiguous."""
        num_rows, num_inputs = x.shape
        groups = num_inputs // GROUP
        rows = QuantizedRows(
            torch.empty((num_rows, num_inputs), dtype=torch.int8),
            torch.empty((num_rows, groups)),
            torch.empty((num_rows, groups), dtype=torch.int32),
        )
        self.library.call(
            "quantize", self.workers.handle, self.path, x, num_rows, num_inputs, rows.values, rows.scales, rows.sums
        )
        return rows

    def multiply(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias` of float32 rows [M, K]: [M, N] float32."""
        return self.multiply_quantized(self.quantize(x.contiguous()), weight, bias)

    def multiply_quantized(self, rows: QuantizedRows, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        """The same of rows that were quantised before."""
        num_outputs, num_inputs = weight.shape
        num_rows = rows.values.shape[0]
        output = torch.empty((num_rows, num_outputs))
        self.library.call(
            "linear",
            self.workers.handle,
            self.path,
            weight.records,
            weight.bits,
            num_outputs,
            num_inputs,
            rows.values,
            rows.scales,
            rows.sums,
            num_rows,
            bias,
            output,
            num_outputs,
        )
        return output
