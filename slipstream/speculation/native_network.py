"""A block drafter in the native library: its weights as groups of eight bits, its layers in one call."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata
from slipstream.kernels.native.groups import GROUP, StoredWeight, group_weight
from slipstream.kernels.native.layers import LayerShape, NativeLayer, NativeLayers
from slipstream.kernels.native.linear import NativeLinear, PackedWeight, pack
from slipstream.models.native_decoder import LANES, MAX_HEAD_DIM, NativeDecoder, native_step, rms_norm
from slipstream.models.rope import rotate_
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.speculation.drafter_model import DrafterLayer, DrafterModel


def network_misfit(config: DrafterConfig) -> str | None:
    """Why the kernels do not take a drafter of this shape; None where they do."""
    sizes = (
        config.hidden_size,
        config.intermediate_size,
        config.num_heads * config.head_dim,
        config.target_hidden_size,
    )
    if any(size % GROUP for size in sizes) or config.head_dim % (2 * LANES) or config.head_dim > MAX_HEAD_DIM:
        return f"widths must be multiples of {GROUP}, heads of {2 * LANES} and at most {MAX_HEAD_DIM}"
    if config.attention_bias:
        return "a bias behind attention is not supported"
    return None


class NativeNetwork:
    """See DrafterNetwork. The model keeps its Markov and confidence heads; of the rest, packed copies run."""

    def __init__(self, model: DrafterModel, target: NativeDecoder) -> None:
        config = self._config = model.config
        self.cache_dtype = target.cache_dtype
        self._target = target
        self._linear = NativeLinear(target.workers, target.path)
        self._rotary = model.make_rotary(target.num_positions)
        self._fc = self._packed(model.fc.weight)
        self._hidden_norm, self._norm = model.hidden_norm.weight.detach(), model.norm.weight.detach()
        self._embedding = model.embed_tokens.weight.detach() if config.owns_embedding else None
        head: StoredWeight = target.head_groups
        if config.owns_head:
            head = model.lm_head.weight.detach()
        elif config.has_reduced_vocabulary:
            head = target.head_groups.rows(model.target_ids)
        self._head = self._packed(head)
        markov = model.markov_head
        if markov is not None and markov.rank % GROUP == 0:
            markov.run_by(partial(self._linear.multiply, weight=self._packed(markov.markov_w2.weight)))
        layers = model.drafter_layers()
        self._context = [self._packed(layer.fused().kv) for layer in layers]
        self._key_norms = [layer.self_attn.k_norm.weight.detach() if config.qk_norm else None for layer in layers]
        shape = LayerShape(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.rms_norm_eps,
        )
        native = [self._native_layer(layer) for layer in layers]
        # Layers that see the same run in one call.
        self._runs: list[tuple[slice, NativeLayers]] = []
        for _, run in itertools.groupby(range(len(native)), key=lambda number: config.patterns[number]):
            numbers = list(run)
            place = slice(numbers[0], numbers[-1] + 1)
            self._runs.append((place, NativeLayers(target.workers, shape, native[place], target.path)))

    @torch.inference_mode()
    def write_context(
        self, layer_hidden: Mapping[int, Tensor], metadata: AttentionMetadata, cache: PagedKVCache
    ) -> None:
        """See DrafterNetwork."""
        config = self._config
        tapped = torch.cat([layer_hidden[layer] for layer in config.target_layer_ids], dim=-1)
        features = rms_norm(self._linear.multiply(tapped, self._fc), self._hidden_norm, config.rms_norm_eps)
        rotary = self._rotary.at(metadata.positions)
        rows = self._linear.quantize(features)
        for layer, (weight, norm) in enumerate(zip(self._context, self._key_norms, strict=True)):
            key_value = self._linear.multiply_quantized(rows, weight).view(len(features), -1, config.head_dim)
            keys = key_value[:, : config.num_kv_heads]
            if norm is not None:
                keys.copy_(rms_norm(keys, norm, config.rms_norm_eps))
            rotate_(keys, *rotary)
            cache.write(layer, key_value.to(self.cache_dtype), metadata.slots)

    @torch.inference_mode()
    def block_hidden(self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache) -> Tensor:
        """See DrafterNetwork."""
        table, config = self._embedding, self._config
        x = self._target.embed(token_ids) if table is None else table[token_ids]
        rotary = self._rotary.at(metadata.positions)
        for place, layers in self._runs:
            step = native_step(replace(metadata, pattern=config.patterns[place.start]), rotary)
            layers.run_(x, step, cache.layers[place], {})
        return rms_norm(x, self._norm, config.rms_norm_eps)

    @torch.inference_mode()
    def base_logits(self, hidden: Tensor) -> Tensor:
        """See DrafterNetwork."""
        return self._linear.multiply(hidden, self._head)

    def _packed(self, weight: StoredWeight) -> PackedWeight:
        return pack(self._linear.library, group_weight(weight.detach()) if isinstance(weight, Tensor) else weight)

    def _native_layer(self, layer: DrafterLayer) -> NativeLayer:
        config, fused, attention = self._config, layer.fused(), layer.self_attn
        qk_norm = None
        if config.qk_norm:
            norms = ((attention.q_norm, config.num_heads), (attention.k_norm, config.num_kv_heads))
            qk_norm = torch.cat([norm.weight.detach().expand(count, -1) for norm, count in norms])
        return NativeLayer(
            attention_norm=layer.input_layernorm.weight.detach(),
            qkv=self._packed(fused.qkv),
            qkv_bias=None,
            qk_norm=qk_norm,
            output=self._packed(fused.output),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
            gate_up=self._packed(fused.gate_up),
            down=self._packed(fused.down),
        )
