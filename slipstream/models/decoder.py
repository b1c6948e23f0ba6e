"""One decoder for Llama, Qwen2 and Qwen3 shapes over flat token batches and paged KV.

Plain functions over tensors: at one row per step the cost of a layer is mostly the cost of calling operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata
from slipstream.attention.protocol import AttentionBackend, StepAttention
from slipstream.kernels.invariant import InvariantKernels
from slipstream.kernels.packing import pack_weight
from slipstream.kernels.protocol import RowKernels
from slipstream.kernels.tiles import TILE_ROWS
from slipstream.models.config import DecoderConfig
from slipstream.models.rope import RotaryTable, rotate_


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, with the projections that share an input fused. H = num_heads, KV = num_kv_heads, D = head_dim.

    Attributes:
        qkv: [(H + 2 KV) * D, hidden]; qkv_bias: [(H + 2 KV) * D] or None.
        qk_norm: norm weight of each query, then each key head, [H + KV, D] or None.
        output: [hidden, H * D]. gate_up: [2 * intermediate, hidden]. down: [hidden, intermediate].
        attention_norm, mlp_norm: [hidden].
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def from_named(cls, config: DecoderConfig, weights: Mapping[str, Tensor], layer: int) -> LayerWeights:
        """Pick and fuse a layer's tensors from Hugging Face names."""
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        bias = None
        if config.attention_bias:
            bias = torch.cat([weights[f"{attention}{name}_proj.bias"] for name in "qkv"])
        qk_norm = None
        if config.qk_norm:
            qk_norm = torch.cat(
                (
                    weights[attention + "q_norm.weight"].expand(config.num_heads, -1),
                    weights[attention + "k_norm.weight"].expand(config.num_kv_heads, -1),
                )
            )
        return cls(
            attention_norm=weights[prefix + "input_layernorm.weight"],
            qkv=pack_weight(torch.cat([weights[f"{attention}{name}_proj.weight"] for name in "qkv"])),
            qkv_bias=bias,
            qk_norm=qk_norm,
            output=pack_weight(weights[attention + "o_proj.weight"]),
            mlp_norm=weights[prefix + "post_attention_layernorm.weight"],
            gate_up=pack_weight(torch.cat([weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")])),
            down=pack_weight(weights[prefix + "mlp.down_proj.weight"]),
        )


@dataclass(frozen=True, slots=True)
class DecoderOutput:
    """What a pass gives.

    Attributes:
        hidden: output of the last layer, before the final norm, [N, hidden]; `compute_logits` takes rows of it.
        layer_hidden: outputs of the layers asked for, by layer number, each [N, hidden]: the residual stream after the
            layer, never normed. -1 is the embedding's output.
    """

    hidden: Tensor
    layer_hidden: dict[int, Tensor]


class Decoder:
    """A decoder's weights and its forward pass.

    Attributes:
        dtype, device: of weights and of every tensor made here. cache_dtype: the same type.
        num_positions: rows must lie at positions below this.
        source_fingerprint: of the weights as they are stored (models/fingerprint.py); None where it was not taken.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        *,
        kernels: RowKernels,
        attention: AttentionBackend,
        num_positions: int | None = None,
        source_fingerprint: str | None = None,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self.attention = attention
        self.source_fingerprint = source_fingerprint
        self._embedding = weights["model.embed_tokens.weight"]
        self.dtype = self.cache_dtype = self._embedding.dtype
        self.device = self._embedding.device
        self._layers = [LayerWeights.from_named(config, weights, i) for i in range(config.num_layers)]
        self._final_norm = weights["model.norm.weight"]
        self._head = pack_weight(self._embedding if config.tie_word_embeddings else weights["lm_head.weight"])
        self.num_positions = num_positions or config.max_position
        self._rotary = RotaryTable(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            self.num_positions,
            dtype=self.dtype,
            device=self.device,
        )
        if isinstance(kernels, InvariantKernels):
            with torch.inference_mode():
                for layer in self._layers[:1]:  # the other layers have the same shapes
                    kernels.prepare_linear(layer.qkv, layer.qkv_bias)
                    for weight in (layer.output, layer.gate_up, layer.down, self._head):
                        kernels.prepare_linear(weight)

    @property
    def tile_rows(self) -> int | None:
        """See TransformerDecoder."""
        return TILE_ROWS if isinstance(self.kernels, InvariantKernels) else None

    @property
    def description(self) -> str:
        """See TransformerDecoder."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}, batch-invariant" if isinstance(self.kernels, InvariantKernels) else dtype

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden], shared with drafters; not to be changed."""
        return self._embedding

    @property
    def head(self) -> Tensor:
        """Output projection [vocabulary, hidden], perhaps packed (kernels/packing.py); shared with drafters."""
        return self._head

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """An empty cache of this decoder's shape, dtype and device."""
        config = self.config
        return PagedKVCache(
            config.num_layers,
            num_blocks,
            block_size,
            config.num_kv_heads,
            config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache, hidden_layers: Sequence[int] = ()
    ) -> DecoderOutput:
        """Run rows of any mix of requests, writing their KV to the cache.

        Args:
            token_ids: int64 [N]; every id must be below the vocabulary's size.
            metadata: positions, slots and owners of the rows.
            hidden_layers: layers (0-based; -1 for the embedding) whose outputs are wanted.
        """
        step = self.attention.begin_step(metadata, cache)
        cosine, sine = self._rotary.at(metadata.positions)
        x = functional.embedding(token_ids, self._embedding)
        wanted = frozenset(hidden_layers)
        kept: dict[int, Tensor] = {-1: x.clone()} if -1 in wanted else {}
        for i, layer in enumerate(self._layers):
            self._run_layer_(x, i, layer, step, metadata.slots, cache, cosine, sine)
            if i in wanted:
                kept[i] = x.clone()
        return DecoderOutput(x, kept)

    def _run_layer_(
        self,
        x: Tensor,
        index: int,
        weights: LayerWeights,
        step: StepAttention,
        slots: Tensor,
        cache: PagedKVCache,
        cosine: Tensor,
        sine: Tensor,
    ) -> None:
        """Add a layer's attention and MLP to the residual stream x [N, hidden], in place."""
        config, kernels = self.config, self.kernels
        num_rows, num_heads = x.shape[0], config.num_heads
        num_rotated = num_heads + config.num_kv_heads

        normed = kernels.rms_norm(x, weights.attention_norm, config.rms_norm_eps)
        qkv = kernels.linear(normed, weights.qkv, weights.qkv_bias).view(num_rows, -1, config.head_dim)
        rotated = qkv[:, :num_rotated]
        if weights.qk_norm is not None:
            rotated.copy_(kernels.rms_norm(rotated, None, config.rms_norm_eps).mul_(weights.qk_norm))
        rotate_(rotated, cosine, sine)
        cache.write(index, qkv[:, num_heads:], slots)
        attended = step.attend(index, qkv[:, :num_heads]).reshape(num_rows, -1)
        x.add_(kernels.linear(attended, weights.output))

        normed = kernels.rms_norm(x, weights.mlp_norm, config.rms_norm_eps)
        activated = kernels.silu_mul(kernels.linear(normed, weights.gate_up))
        x.add_(kernels.linear(activated, weights.down))

    @torch.inference_mode()
    def final_norm(self, hidden: Tensor) -> Tensor:
        """Chosen rows of `DecoderOutput.hidden` as the output projection takes them, [M, hidden]."""
        return self.kernels.rms_norm(hidden, self._final_norm, self.config.rms_norm_eps)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Final norm and output projection of chosen rows of `DecoderOutput.hidden`: [M, hidden] to [M, vocabulary]."""
        return self.kernels.linear(self.final_norm(hidden), self._head)
