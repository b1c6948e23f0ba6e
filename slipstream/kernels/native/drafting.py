"""What a block drafter runs beside its layers, in the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kernels.native.library import InstructionPath, Workers
from slipstream.kernels.native.linear import PackedWeight

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float


class _ContextShape(ctypes.Structure):
    """See ContextShape in source/drafter.h."""

    _fields_ = (
        *((name, _INT) for name in ("num_rows", "num_taps", "target_size", "hidden_size", "num_layers")),
        *((name, _INT) for name in ("num_kv_heads", "head_dim", "is_bfloat16_cache", "fc_bits")),
        ("rms_norm_eps", _FLOAT),
    )


class _ContextLayer(ctypes.Structure):
    """See ContextLayer in source/drafter.h."""

    _fields_ = (*((name, _POINTER) for name in ("key_value", "key_norm", "cache")), ("bits", _INT))


class _ContextRows(ctypes.Structure):
    """See ContextRows in source/drafter.h."""

    _fields_ = tuple((name, _POINTER) for name in ("taps", "slots", "cosine", "sine"))


class _BlockShape(ctypes.Structure):
    """See BlockShape in source/drafter.h."""

    _fields_ = (
        *((name, _INT) for name in ("num_requests", "num_drafts", "hidden_size", "vocab_size", "head_bits")),
        *((name, _INT) for name in ("rank", "bias_bits", "has_confidence", "sees_token")),
        ("confidence_bias", _FLOAT),
    )


class _BlockWeights(ctypes.Structure):
    """See BlockWeights in source/drafter.h."""

    _fields_ = tuple(
        (name, _POINTER) for name in ("head", "token_table", "token_bias", "confidence", "target_ids", "constants")
    )


class _BlockInputs(ctypes.Structure):
    """See BlockInputs in source/drafter.h."""

    _fields_ = tuple((name, _POINTER) for name in ("hidden", "anchors", "temperatures", "keys"))


class _Runner:
    """What both parts share: where they run, and scratch memory that grows with the largest call."""

    def __init__(self, workers: Workers, path: InstructionPath | None) -> None:
        self._workers = workers
        self._library = workers.library
        self._path = self._library.best_path if path is None else path
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def _room(self, function: str, shape: ctypes.Structure) -> Tensor:
        needed = self._library.call(function, ctypes.byref(shape))
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        return self._scratch


@dataclass(frozen=True, slots=True)
class ContextLayer:
    """A layer's key and value projections, [2 * num_kv_heads * head_dim, d]; key_norm: float32 [head_dim]."""

    key_value: PackedWeight
    key_norm: Tensor | None


class NativeContext(_Runner):
    """Turns tapped states of the target into keys and values of a drafter's layers.

    Args:
        fc: [d, taps * d_t]. hidden_norm: float32 [d].
    """

    def __init__(
        self,
        workers: Workers,
        fc: PackedWeight,
        hidden_norm: Tensor,
        layers: Sequence[ContextLayer],
        *,
        num_kv_heads: int,
        head_dim: int,
        rms_norm_eps: float,
        path: InstructionPath | None = None,
    ) -> None:
        super().__init__(workers, path)
        self._fc, self._hidden_norm, self._kept = fc, hidden_norm.contiguous(), list(layers)
        self._heads = (num_kv_heads, head_dim)
        self._eps = rms_norm_eps
        self._layers = (_ContextLayer * len(layers))(
            *(
                _ContextLayer(
                    layer.key_value.records.data_ptr(),
                    None if layer.key_norm is None else layer.key_norm.data_ptr(),
                    None,
                    layer.key_value.bits,
                )
                for layer in layers
            )
        )

    def write(
        self, taps: Sequence[Tensor], slots: Tensor, rotary: tuple[Tensor, Tensor], caches: Sequence[Tensor]
    ) -> None:
        """Write the keys and values of N rows.

        Args:
            taps: of each tapped layer, float32 [N, d_t], contiguous.
            slots: int64 [N]. rotary: float32 [N, head_dim] each (models/rope.py).
            caches: of each layer, [blocks, block_size, 2, num_kv_heads, head_dim], float32 or bfloat16.
        """
        num_rows, target_size = taps[0].shape
        shape = _ContextShape(
            num_rows,
            len(taps),
            target_size,
            self._fc.shape[0],
            len(self._kept),
            *self._heads,
            caches[0].dtype == torch.bfloat16,
            self._fc.bits,
            self._eps,
        )
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.cache = cache.data_ptr()
        addresses = (_POINTER * len(taps))(*(tap.data_ptr() for tap in taps))
        rows = _ContextRows(ctypes.addressof(addresses), slots.data_ptr(), *(t.data_ptr() for t in rotary))
        self._library.call(
            "write_context",
            self._workers.handle,
            self._path,
            ctypes.byref(shape),
            self._fc.records,
            self._hidden_norm,
            self._layers,
            ctypes.byref(rows),
            self._room("context_bytes", shape),
        )


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """What chooses a block's drafts.

    Attributes:
        head: [V_d, d]. target_ids: int64 [V_d], ascending: among equals the lowest id is drawn.
        constants: of each target id's noise, int64 [V_d] (sampling/noise.py).
        token_table, token_bias: of a vanilla Markov head, float32 [V_t, r] and [V_d, r]; None for none.
        confidence: float32 [d], or [d + r] where it sees the token before; None for none.
    """

    head: PackedWeight
    target_ids: Tensor
    constants: Tensor
    token_table: Tensor | None = None
    token_bias: PackedWeight | None = None
    confidence: Tensor | None = None
    confidence_bias: float = 0.0


class NativeBlockDraw(_Runner):
    """Draws blocks, greedy or coupled (speculation/draft_sampling.py)."""

    def __init__(self, workers: Workers, heads: BlockHeads, path: InstructionPath | None = None) -> None:
        super().__init__(workers, path)
        self._heads = heads
        parts = (
            heads.head.records,
            heads.token_table,
            None if heads.token_bias is None else heads.token_bias.records,
            heads.confidence,
            heads.target_ids,
            heads.constants,
        )
        self._weights = _BlockWeights(*(None if part is None else part.data_ptr() for part in parts))

    def draw(self, hidden: Tensor, anchors: Tensor, temperatures: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Drafts (target ids, int64 [R, K]) and the logits of their confidences, float32 [R, K].

        Args:
            hidden: after the final norm, float32 [R, K, d]. anchors: target ids, int64 [R].
            temperatures: float64 [R]. keys: of each draft's noise, int64 [R, K]; not read at temperature 0.
        """
        hidden = hidden.contiguous()
        heads, (num_requests, num_drafts, width) = self._heads, hidden.shape
        rank = 0 if heads.token_table is None else heads.token_table.shape[1]
        shape = _BlockShape(
            num_requests,
            num_drafts,
            width,
            heads.head.shape[0],
            heads.head.bits,
            rank,
            0 if heads.token_bias is None else heads.token_bias.bits,
            heads.confidence is not None,
            heads.confidence is not None and len(heads.confidence) > width,
            heads.confidence_bias,
        )
        drafts = torch.empty((num_requests, num_drafts), dtype=torch.int64)
        scores = torch.empty((num_requests, num_drafts))
        self._library.call(
            "draw_blocks",
            self._workers.handle,
            self._path,
            ctypes.byref(shape),
            ctypes.byref(self._weights),
            ctypes.byref(_BlockInputs(*(t.data_ptr() for t in (hidden, anchors, temperatures, keys)))),
            drafts,
            scores,
            self._room("block_bytes", shape),
        )
        return drafts, None if heads.confidence is None else scores
