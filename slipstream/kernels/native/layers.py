"""All layers of a decoder in one call of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.kernels.native.library import InstructionPath, Workers
from slipstream.kernels.native.linear import PackedWeight

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int32


class _Layer(ctypes.Structure):
    """See Layer in source/decoder.h."""

    _fields_ = (
        *((name, _POINTER) for name in ("attention_norm", "qkv", "qkv_bias", "qk_norm", "output", "mlp_norm")),
        *((name, _POINTER) for name in ("gate_up", "down", "cache", "tap")),
        *((name, _INT) for name in ("qkv_bits", "output_bits", "gate_up_bits", "down_bits")),
    )


class _Shape(ctypes.Structure):
    """See Shape in source/decoder.h."""

    _fields_ = (
        *((name, _INT) for name in ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads")),
        ("head_dim", _INT),
        ("is_bfloat16_cache", _INT),
        ("rms_norm_eps", ctypes.c_float),
    )


class _StepRows(ctypes.Structure):
    """See StepRows in source/decoder.h."""

    _fields_ = (
        *((name, _INT) for name in ("num_rows", "num_requests", "block_size", "is_causal")),
        *((name, _POINTER) for name in ("slots", "cosine", "sine", "requests", "block_ids")),
    )


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One layer. Norms and the bias are float32; shapes as in models/decoder.py LayerWeights."""

    attention_norm: Tensor
    qkv: PackedWeight
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: PackedWeight
    mlp_norm: Tensor
    gate_up: PackedWeight
    down: PackedWeight


class HasLayers(Protocol):
    """A configuration that says what its layers are like."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Of every layer alike."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float

    @classmethod
    def of(cls, config: HasLayers) -> LayerShape:
        """Of a decoder's or a drafter's layers."""
        return cls(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.rms_norm_eps,
        )


@dataclass(frozen=True, slots=True)
class NativeStep:
    """Rows of a step.

    Attributes:
        slots: int64 [N]. cosine, sine: float32 [N, head_dim], contiguous (models/rope.py).
        requests: int32 [R, 5]: first row, rows, first position, position of the first key seen, start in block_ids.
        block_ids: int32; the requests' block tables, one after the other.
        is_causal: a row sees no later row of its request.
    """

    slots: Tensor
    cosine: Tensor
    sine: Tensor
    requests: Tensor
    block_ids: Tensor
    block_size: int
    is_causal: bool = True


class NativeLayers:
    """Layers ready to run.

    Args:
        path: which instructions; None takes the fastest that this processor has.
    """

    def __init__(
        self, workers: Workers, shape: LayerShape, layers: Sequence[NativeLayer], path: InstructionPath | None = None
    ) -> None:
        self.workers = workers
        self.path = workers.library.best_path if path is None else path
        self._kept = list(layers)  # their memory is read by address
        self._shape = _Shape(
            len(layers),
            shape.hidden_size,
            shape.intermediate_size,
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            0,
            shape.rms_norm_eps,
        )
        self._layers = (_Layer * len(layers))(*map(_layer_of, layers))
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def run_(self, x: Tensor, step: NativeStep, caches: Sequence[Tensor], taps: dict[int, Tensor]) -> None:
        """Run all layers over x [N, hidden] in place.

        Args:
            x: float32, contiguous.
            caches: of every layer, [blocks, block_size, 2, num_kv_heads, head_dim], float32 or bfloat16.
            taps: layer -> where its output is copied to, float32 [N, hidden].
        """
        for number, (layer, cache) in enumerate(zip(self._layers, caches, strict=True)):
            tap = taps.get(number)
            layer.cache, layer.tap = cache.data_ptr(), None if tap is None else tap.data_ptr()
        self._shape.is_bfloat16_cache = caches[0].dtype == torch.bfloat16
        rows = _StepRows(
            x.shape[0],
            len(step.requests),
            step.block_size,
            step.is_causal,
            *(t.data_ptr() for t in (step.slots, step.cosine, step.sine, step.requests, step.block_ids)),
        )
        library = self.workers.library
        needed = library.call("scratch_bytes", ctypes.byref(self._shape), x.shape[0])
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        library.call(
            "run_layers",
            self.workers.handle,
            self.path,
            ctypes.byref(self._shape),
            self._layers,
            ctypes.byref(rows),
            x,
            self._scratch,
        )


def _layer_of(layer: NativeLayer) -> _Layer:
    def address(tensor: Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return _Layer(
        address(layer.attention_norm),
        address(layer.qkv.records),
        address(layer.qkv_bias),
        address(layer.qk_norm),
        address(layer.output.records),
        address(layer.mlp_norm),
        address(layer.gate_up.records),
        address(layer.down.records),
        None,
        None,
        layer.qkv.bits,
        layer.output.bits,
        layer.gate_up.bits,
        layer.down.bits,
    )
