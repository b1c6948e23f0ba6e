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
from slipstream.kernels.native.drafting import BlockHeads, ContextLayer, NativeBlockDraw, NativeContext
from slipstream.kernels.native.ends import NativeNorm
from slipstream.kernels.native.groups import GROUP, StoredWeight, group_weight
from slipstream.kernels.native.layers import LayerShape, NativeLayer, NativeLayers
from slipstream.kernels.native.linear import NativeLinear, PackedWeight, pack
from slipstream.models.native_decoder import LANES, MAX_HEAD_DIM, NativeDecoder, native_step
from slipstream.sampling.noise import token_constants
from slipstream.speculation.draft_sampling import DraftChooser
from slipstream.speculation.drafter_config import DrafterConfig, MarkovKind
from slipstream.speculation.drafter_model import DrafterLayer, DrafterModel
from slipstream.speculation.heads import DraftedBlocks, draw_blocks


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
        self._markov, self._confidence = model.markov_head, model.confidence_head
        self._norm = NativeNorm(target.workers, model.norm.weight.detach(), config.rms_norm_eps, target.path)
        self._embedding = model.embed_tokens.weight.detach() if config.owns_embedding else None
        head: StoredWeight = target.head_groups
        if config.owns_head:
            head = model.lm_head.weight.detach()
        elif config.has_reduced_vocabulary:
            head = target.head_groups.rows(model.target_ids)
        self._head = self._packed(head)
        heads = self._block_heads(model)
        self._draw = None if heads is None else NativeBlockDraw(target.workers, heads, target.path)
        layers = model.drafter_layers()
        self._context = NativeContext(
            target.workers,
            self._packed(model.fc.weight),
            model.hidden_norm.weight.detach(),
            [self._context_layer(layer) for layer in layers],
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            path=target.path,
        )
        shape = LayerShape.of(config)
        native = [self._native_layer(layer) for layer in layers]
        # Layers that see the same run in one call.
        self._runs: list[tuple[slice, NativeLayers]] = []
        for _, run in itertools.groupby(range(len(native)), key=lambda number: config.patterns[number]):
            numbers = list(run)
            place = slice(numbers[0], numbers[-1] + 1)
            self._runs.append((place, NativeLayers(target.workers, shape, native[place], target.path)))
        for parameter in (*model.layers.parameters(), *model.fc.parameters()):
            parameter.data = parameter.data.new_empty(0)  # packed copies stand for them

    @torch.inference_mode()
    def write_context(
        self, layer_hidden: Mapping[int, Tensor], metadata: AttentionMetadata, cache: PagedKVCache
    ) -> None:
        """See DrafterNetwork."""
        taps = [layer_hidden[layer] for layer in self._config.target_layer_ids]
        self._context.write(taps, metadata.slots, self._rotary.at(metadata.positions), cache.layers)

    @torch.inference_mode()
    def block_hidden(self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache) -> Tensor:
        """See DrafterNetwork."""
        table, config = self._embedding, self._config
        x = self._target.embed(token_ids) if table is None else table[token_ids]
        rotary = self._rotary.at(metadata.positions)
        for place, layers in self._runs:
            step = native_step(replace(metadata, pattern=config.patterns[place.start]), rotary)
            layers.run_(x, step, cache.layers[place], {})
        return self._norm(x)

    @torch.inference_mode()
    def draw(self, hidden: Tensor, anchors: Tensor, chooser: DraftChooser) -> DraftedBlocks:
        """See DrafterNetwork."""
        if self._draw is not None and not chooser.keeps_logits:
            return DraftedBlocks(*self._draw.draw(hidden, anchors, *chooser.noise(hidden.shape[1])))
        logits = self._linear.multiply(hidden.flatten(0, 1), self._head).view(*hidden.shape[:2], -1)
        return draw_blocks(logits, hidden, anchors, chooser, self._markov, self._confidence)

    def _block_heads(self, model: DrafterModel) -> BlockHeads | None:
        """For drawing natively; None for a Markov head of another kind or width, or draft ids in no order."""
        markov, confidence = model.markov_head, model.confidence_head
        ids = model.target_ids
        if self._config.markov not in (MarkovKind.NONE, MarkovKind.VANILLA) or bool((ids.diff() <= 0).any()):
            return None
        constants = token_constants(self._config.vocab_size, "cpu")[ids].contiguous()
        table = bias = None
        if markov is not None:
            if markov.rank % GROUP:
                return None
            table, bias = markov.markov_w1.weight.detach().contiguous(), self._packed(markov.markov_w2.weight)
            markov.run_by(partial(self._linear.multiply, weight=bias))
        if confidence is None:
            return BlockHeads(self._head, ids, constants, table, bias)
        weight = confidence.proj.weight.detach().flatten().contiguous()
        return BlockHeads(self._head, ids, constants, table, bias, weight, float(confidence.proj.bias))

    def _context_layer(self, layer: DrafterLayer) -> ContextLayer:
        norm = layer.self_attn.k_norm.weight.detach() if self._config.qk_norm else None
        return ContextLayer(self._packed(layer.fused().kv), norm)

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
