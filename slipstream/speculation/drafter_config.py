"""What a block drafter (DFlash, DSpark) is, whatever checkpoint format it came from.

One convention for everything; the formats' own ones end where they are read (speculation/formats).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from slipstream.attention.pattern import AttentionPattern
from slipstream.models.config import ModelLoadError, RopeScaling
from slipstream.scheduler.layouts import LAYOUTS, DraftLayout

EMBEDDING_OUTPUT = -1


class Algorithm(StrEnum):
    """The published name of the drafter's kind."""

    DFLASH = "dflash"
    DSPARK = "dspark"


class RowLayout(StrEnum):
    """What the rows of a block predict. The rows are the anchor x_p and masks, at positions p, p + 1, …

    ANCHOR_FIRST: row k predicts position p + k + 1; K drafts need K rows.
    FILL_IN: row k > 0 predicts its own position p + k and row 0 nothing; K drafts need K + 1 rows.
    """

    ANCHOR_FIRST = "anchor_first"
    FILL_IN = "fill_in"


class MarkovKind(StrEnum):
    """How a draft's logits depend on the draft before (reference: heads.py)."""

    NONE = "none"
    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Sequential temperature scaling: confidence k is sigmoid(logit / divisors[k] + shifts[k]).

    Attributes:
        temperature: of the requests that it was fitted on.
        divisors: one per draft position, above 0.
        shifts: as many; none given are zeros, the method as published (reference: training/temperature_fit.py).
    """

    temperature: float
    divisors: tuple[float, ...]
    shifts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.divisors or not all(0.0 < divisor < math.inf for divisor in self.divisors):
            raise ModelLoadError(f"calibration divisors must be numbers above 0, got {self.divisors}")
        if not self.shifts:
            object.__setattr__(self, "shifts", (0.0,) * len(self.divisors))
        if len(self.shifts) != len(self.divisors) or not all(map(math.isfinite, self.shifts)):
            raise ModelLoadError(
                f"calibration shifts must be finite numbers, as many as divisors ({len(self.divisors)}), "
                f"got {self.shifts}"
            )
        if not 0.0 <= self.temperature < math.inf:
            raise ModelLoadError(f"calibration temperature must be at least 0, got {self.temperature}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIdentity:
    """The model that a drafter was made for; None where its checkpoint does not say.

    Attributes:
        name: for messages.
        vocab_size, hidden_size, num_layers: shape.
        weights: fingerprint of the source weights. tokenizer: fingerprint of the token texts (models/fingerprint.py).
    """

    name: str | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_layers: int | None = None
    weights: str | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """Shape and meaning of a block drafter. What cannot exist raises ModelLoadError.

    Attributes:
        algorithm, layout: kind and meaning of the rows.
        block_size: rows of a trained block, the anchor's included.
        target_layer_ids: tapped target layers, ascending: i is the output of decoder layer i (0-based), the residual
            stream before any final norm, as `Decoder.forward(hidden_layers=…)` counts; -1 is the embedding's output.
        mask_token_id: vocabulary row that stands for a token not yet known.
        vocab_size: rows of the target's embedding: ids of anchors, masks and drafts.
        draft_vocab_size: rows of the head; equal to vocab_size without a reduced vocabulary (then no `d2t`).
        hidden_size, target_hidden_size: of the drafter's and of the target's stream.
        patterns: what rows see, one per layer.
        qk_norm: RMS norm of query and key heads before the rotation. attention_bias: on q, k, v and o projections.
        max_position: positions that the drafter was made for.
        owns_embedding, owns_head: the checkpoint brings `embed_tokens` or `lm_head`; else the target's are used, of
            the head the rows of the draft vocabulary.
        markov, markov_rank: the sequential head; rank 0 exactly without one.
        has_confidence: a confidence head exists. confidence_with_markov: it reads the previous token's Markov
            embedding beside the hidden state.
        calibrations: of the confidences, by request temperature.
        target: whom it drafts for. training: how it came about; free-form JSON.
    """

    algorithm: Algorithm
    layout: RowLayout
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    patterns: tuple[AttentionPattern, ...]
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    max_position: int = 32768
    qk_norm: bool = True
    attention_bias: bool = False
    owns_embedding: bool = False
    owns_head: bool = False
    markov: MarkovKind = MarkovKind.NONE
    markov_rank: int = 0
    has_confidence: bool = False
    confidence_with_markov: bool = False
    calibrations: tuple[Calibration, ...] = ()
    target: TargetIdentity = field(default_factory=TargetIdentity)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_layers()
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ModelLoadError(
                f"mask_token_id {self.mask_token_id} lies outside the vocabulary of {self.vocab_size} rows"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise ModelLoadError(
                f"draft vocabulary {self.draft_vocab_size} is larger than the target's {self.vocab_size}"
            )
        if (self.markov is MarkovKind.NONE) != (self.markov_rank == 0):
            raise ModelLoadError(f"markov head {self.markov.value!r} does not go with markov_rank {self.markov_rank}")
        if self.confidence_with_markov and self.markov is MarkovKind.NONE:
            raise ModelLoadError("confidence_head_with_markov needs a Markov head, and there is none")
        if not (self.owns_embedding and self.owns_head) and self.hidden_size != self.target_hidden_size:
            raise ModelLoadError(
                f"a drafter of hidden_size {self.hidden_size} cannot share the embedding and head of a target of "
                f"hidden_size {self.target_hidden_size}"
            )

    def _check_numbers(self) -> None:
        least = 2 if self.layout is RowLayout.FILL_IN else 1
        if self.block_size < least:
            raise ModelLoadError(f"block_size must be at least {least}, got {self.block_size}")
        for name in ("vocab_size", "draft_vocab_size", "hidden_size", "target_hidden_size", "intermediate_size"):
            if getattr(self, name) < 1:
                raise ModelLoadError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 1 <= self.num_kv_heads <= self.num_heads or self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim < 2 or self.head_dim % 2:
            raise ModelLoadError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if self.markov_rank < 0:
            raise ModelLoadError(f"markov_rank must be at least 0, got {self.markov_rank}")

    def _check_layers(self) -> None:
        ids = self.target_layer_ids
        if not ids or list(ids) != sorted(set(ids)) or ids[0] < EMBEDDING_OUTPUT:
            raise ModelLoadError(
                f"tapped target layers must be one or more ascending numbers from {EMBEDDING_OUTPUT} on, "
                f"got {list(ids)}"
            )
        depth = self.target.num_layers
        if depth is not None and ids[-1] >= depth:
            raise ModelLoadError(f"tapped target layer {ids[-1]} does not exist: the target has {depth} layers")
        if not self.patterns:
            raise ModelLoadError("a drafter needs at least one layer")
        for pattern in self.patterns:
            if pattern.window is not None and pattern.window < 1:
                raise ModelLoadError(f"a sliding window must be at least 1, got {pattern.window}")

    @property
    def num_layers(self) -> int:
        """Layers of the drafter."""
        return len(self.patterns)

    @property
    def max_draft_tokens(self) -> int:
        """Drafts of a trained block: the largest K."""
        return self.block_size - self.first_draft_row

    @property
    def first_draft_row(self) -> int:
        """Row of the block that predicts draft 1."""
        return 1 if self.layout is RowLayout.FILL_IN else 0

    @property
    def draft_layout(self) -> DraftLayout:
        """The budgets of this drafter; its rows per request are those of the row layout."""
        if self.layout is RowLayout.ANCHOR_FIRST:
            return LAYOUTS["dspark"]
        return LAYOUTS["dflash" if self.algorithm is Algorithm.DFLASH else "dspark_fill_in"]

    @property
    def has_reduced_vocabulary(self) -> bool:
        """Whether head rows are mapped to target ids by `d2t`."""
        return self.draft_vocab_size != self.vocab_size

    def num_block_rows(self, num_draft_tokens: int) -> int:
        """Query rows that K drafts need."""
        return num_draft_tokens + self.first_draft_row

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight that a checkpoint of this drafter holds, `d2t` included."""
        hidden, inner, rank = self.hidden_size, self.intermediate_size, self.markov_rank
        query_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, len(self.target_layer_ids) * self.target_hidden_size),
            "hidden_norm.weight": (hidden,),
        }
        for layer in range(self.num_layers):
            prefix = f"layers.{layer}."
            attention = prefix + "self_attn."
            projections = {
                "q_proj": (query_width, hidden),
                "k_proj": (kv_width, hidden),
                "v_proj": (kv_width, hidden),
                "o_proj": (hidden, query_width),
            }
            for name, shape in projections.items():
                shapes[f"{attention}{name}.weight"] = shape
                if self.attention_bias:
                    shapes[f"{attention}{name}.bias"] = shape[:1]
            if self.qk_norm:
                shapes[attention + "q_norm.weight"] = shapes[attention + "k_norm.weight"] = (self.head_dim,)
            shapes[prefix + "input_layernorm.weight"] = shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
            shapes[prefix + "mlp.gate_proj.weight"] = shapes[prefix + "mlp.up_proj.weight"] = (inner, hidden)
            shapes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
        shapes["norm.weight"] = (hidden,)
        if self.owns_embedding:
            shapes["embed_tokens.weight"] = (self.vocab_size, hidden)
        if self.owns_head:
            shapes["lm_head.weight"] = (self.draft_vocab_size, hidden)
        if self.has_reduced_vocabulary:
            shapes["d2t"] = (self.draft_vocab_size,)
        if self.markov is not MarkovKind.NONE:
            shapes["markov_head.markov_w1.weight"] = (self.vocab_size, rank)
            shapes["markov_head.markov_w2.weight"] = (self.draft_vocab_size, rank)
        if self.markov is MarkovKind.GATED:
            shapes["markov_head.gate_proj.weight"] = (rank, hidden + rank)
            shapes["markov_head.gate_proj.bias"] = (rank,)
        if self.markov is MarkovKind.RNN:
            shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
            shapes["markov_head.joint_proj.bias"] = (3 * rank,)
        if self.has_confidence:
            shapes["confidence_head.proj.weight"] = (1, hidden + (rank if self.confidence_with_markov else 0))
            shapes["confidence_head.proj.bias"] = (1,)
        return shapes

    def calibration_for(self, temperature: float) -> Calibration | None:
        """The calibration of the nearest request temperature; None without any."""
        return min(self.calibrations, key=lambda c: abs(c.temperature - temperature), default=None)
