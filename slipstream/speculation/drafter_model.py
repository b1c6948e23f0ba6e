"""The network of a block drafter (DFlash, DSpark): one module for training and for serving.

Rows are flat, [N, …], as in models/decoder.py. Attention is the caller's: a paged cache when serving, masked dense
products in training. Parameters have the names of published checkpoints, so `state_dict` is the file.

Source: DFlash and DSpark (arXiv 2607.05147). Context: H = RMSNorm(fc(tapped target states side by side)), once per
target token; each layer's key and value projections apply to H as they do to the block's own rows. H is not normed
again inside a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.kernels.fast import FastKernels
from slipstream.kernels.packing import pack_weight, plain_weight
from slipstream.kernels.protocol import RowKernels
from slipstream.models.rope import RotaryTable, rotate_
from slipstream.speculation.drafter_config import DrafterConfig, MarkovKind
from slipstream.speculation.heads import MARKOV_HEADS, ConfidenceHead, MarkovHead, embedding_table

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, query [N, num_heads, head_dim], keys then values of the same rows [N, 2 * num_kv_heads, head_dim]) ->
attention output [N, num_heads, head_dim]. Keys and queries are already rotated."""


@dataclass(frozen=True, slots=True)
class FusedWeights:
    """A layer's projections that share an input, fused, output rows first; kv is a part of qkv."""

    qkv: Tensor
    kv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(slots=True)
class BorrowedWeights:
    """What is not the drafter's to train or save: the target's tensors, and packed copies for inference.

    Attributes:
        embedding: [V_t, d]. head: [V_d, d]. fc: packed.
    """

    embedding: Tensor | None = None
    head: Tensor | None = None
    fc: Tensor | None = None


class Norm(nn.Module):
    """Holds the weight of an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class DrafterAttention(nn.Module):
    """Holds a layer's attention weights."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, query_width, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_width, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_width, bias=bias)
        self.o_proj = nn.Linear(query_width, hidden, bias=bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = Norm(config.head_dim), Norm(config.head_dim)


class DrafterMLP(nn.Module):
    """Holds a layer's feed-forward weights."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)


class DrafterLayer(nn.Module):
    """One layer over context and block rows."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = Norm(config.hidden_size)
        self.self_attn = DrafterAttention(config)
        self.post_attention_layernorm = Norm(config.hidden_size)
        self.mlp = DrafterMLP(config)
        self._packed: FusedWeights | None = None

    def pack(self) -> None:
        """Fuse and lay out the weights once, for inference; later changes of the parameters are not seen."""
        with torch.no_grad():
            fused = self.fused()
            self._packed = FusedWeights(
                *(pack_weight(w.detach()) for w in (fused.qkv, fused.kv, fused.output, fused.gate_up, fused.down))
            )

    def context_key_values(self, features: Tensor, rotary: tuple[Tensor, Tensor], kernels: RowKernels) -> Tensor:
        """Rotated keys, then values, of context features [N, d]: [N, 2 * num_kv_heads, head_dim]."""
        heads = _split_heads(kernels.linear(features, self._weights().kv, self._bias("kv")), self.config.head_dim)
        num_kv = self.config.num_kv_heads
        keys = self._positioned(heads[..., :num_kv, :], "k_norm", rotary, kernels)
        return torch.cat((keys, heads[..., num_kv:, :]), dim=-2)

    def forward(
        self, x: Tensor, index: int, rotary: tuple[Tensor, Tensor], attend: Attend, kernels: RowKernels
    ) -> Tensor:
        """Block rows x [N, d] to [N, d]; `index` is this layer's number, which `attend` is told."""
        config, weights = self.config, self._weights()
        num_heads, num_kv = config.num_heads, config.num_kv_heads
        normed = kernels.rms_norm(x, self.input_layernorm.weight, config.rms_norm_eps)
        heads = _split_heads(kernels.linear(normed, weights.qkv, self._bias("qkv")), config.head_dim)
        query = self._positioned(heads[..., :num_heads, :], "q_norm", rotary, kernels)
        keys = self._positioned(heads[..., num_heads : num_heads + num_kv, :], "k_norm", rotary, kernels)
        attended = attend(index, query, torch.cat((keys, heads[..., num_heads + num_kv :, :]), dim=-2))
        x = x + kernels.linear(attended.flatten(-2), weights.output, self._bias("o"))
        normed = kernels.rms_norm(x, self.post_attention_layernorm.weight, config.rms_norm_eps)
        return x + kernels.linear(kernels.silu_mul(kernels.linear(normed, weights.gate_up)), weights.down)

    def _positioned(self, heads: Tensor, norm: str, rotary: tuple[Tensor, Tensor], kernels: RowKernels) -> Tensor:
        """Normed (where the drafter does so) and rotated heads, a new tensor."""
        if self.config.qk_norm:
            weight = getattr(self.self_attn, norm).weight
            heads = kernels.rms_norm(heads, weight, self.config.rms_norm_eps)
        else:
            heads = heads.clone()  # it shares memory with keys and values
        rotate_(heads, *rotary)
        return heads

    def _weights(self) -> FusedWeights:
        return self._packed if self._packed is not None else self.fused()

    def fused(self) -> FusedWeights:
        """This layer's projections, made anew."""
        attention, mlp = self.self_attn, self.mlp
        kv = torch.cat((attention.k_proj.weight, attention.v_proj.weight))
        return FusedWeights(
            qkv=torch.cat((attention.q_proj.weight, kv)),
            kv=kv,
            output=attention.o_proj.weight,
            gate_up=torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)),
            down=mlp.down_proj.weight,
        )

    def _bias(self, projections: str) -> Tensor | None:
        if not self.config.attention_bias:
            return None
        return torch.cat([getattr(self.self_attn, f"{name}_proj").bias for name in projections])


def _split_heads(x: Tensor, head_dim: int) -> Tensor:
    """[N, heads * head_dim] to [N, heads, head_dim]."""
    return x.view(x.shape[0], -1, head_dim)


class DrafterModel(nn.Module):
    """A block drafter's weights and formulas.

    Unless the drafter owns its embedding and head, `bind_target` must be called before `embed` and `base_logits`.

    Attributes:
        d2t: draft id -> what is added to get the target id, int64 [V_d]; a buffer, only with a reduced vocabulary.
        target_ids: target id of each draft id, int64 [V_d]; ascending in checkpoints made here.
    """

    d2t: Tensor

    def __init__(self, config: DrafterConfig, *, kernels: RowKernels | None = None) -> None:
        super().__init__()
        self.config = config
        self.kernels: RowKernels = kernels or FastKernels()
        self.fc = nn.Linear(len(config.target_layer_ids) * config.target_hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = Norm(config.hidden_size)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in config.patterns)
        self.norm = Norm(config.hidden_size)
        if config.owns_embedding:
            self.embed_tokens = embedding_table(config.vocab_size, config.hidden_size)
        if config.owns_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        if config.has_reduced_vocabulary:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.markov_head: MarkovHead | None = None
        if config.markov is not MarkovKind.NONE:
            self.markov_head = MARKOV_HEADS[config.markov](config, self.kernels)
        self.confidence_head = ConfidenceHead(config, self.kernels) if config.has_confidence else None
        self._borrowed = BorrowedWeights()

    @property
    def target_ids(self) -> Tensor:
        ids = torch.arange(self.config.draft_vocab_size, device=self.fc.weight.device)
        return ids + self.d2t if self.config.has_reduced_vocabulary else ids

    def drafter_layers(self) -> list[DrafterLayer]:
        """The layers, typed."""
        return [layer for layer in self.layers if isinstance(layer, DrafterLayer)]

    def bind_target(self, embedding: Tensor, head: Tensor) -> None:
        """Take what the drafter does not own from the target: embedding [V_t, d] and head [V_t, d] (may be packed).

        With a reduced vocabulary, the head's rows of the draft vocabulary are copied; nothing else is.
        """
        config = self.config
        if not config.owns_embedding:
            self._borrowed.embedding = embedding
        if not config.owns_head:
            reduced = config.has_reduced_vocabulary
            self._borrowed.head = plain_weight(head).detach()[self.target_ids] if reduced else head

    def pack(self) -> None:
        """Lay out the weights for inference; after `bind_target`."""
        for layer in self.drafter_layers():
            layer.pack()
        self._borrowed.fc = pack_weight(self.fc.weight.detach())
        if self.markov_head is not None:
            self.markov_head.pack()
        head = self._head()
        if not head.is_mkldnn:
            self._borrowed.head = pack_weight(head.detach())

    def make_rotary(self, num_positions: int) -> RotaryTable:
        """Cosines and sines in the type and on the device of the weights."""
        config, weight = self.config, self.fc.weight
        return RotaryTable(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            num_positions,
            dtype=weight.dtype,
            device=weight.device,
        )

    def context_features(self, tapped: Tensor) -> Tensor:
        """H of target tokens: their tapped states side by side, ascending layers, [N, m * d_t] to [N, d]."""
        weight = self.fc.weight if self._borrowed.fc is None else self._borrowed.fc
        return self.kernels.rms_norm(
            self.kernels.linear(tapped, weight), self.hidden_norm.weight, self.config.rms_norm_eps
        )

    def context_key_values(self, features: Tensor, rotary: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Per layer, rotated keys then values of context features [N, d]: [N, 2 * num_kv_heads, head_dim]."""
        return [layer.context_key_values(features, rotary, self.kernels) for layer in self.drafter_layers()]

    def embed(self, token_ids: Tensor) -> Tensor:
        """Block rows' input, from target ids [N]: [N, d]."""
        table = self.embed_tokens.weight if self.config.owns_embedding else self._borrowed.embedding
        if table is None:
            raise RuntimeError("bind_target was not called")
        return functional.embedding(token_ids, table)

    def run_block_rows(self, x: Tensor, rotary: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Block rows [N, d] through all layers and the final norm: [N, d]."""
        for index, layer in enumerate(self.drafter_layers()):
            x = layer(x, index, rotary, attend, self.kernels)
        return self.kernels.rms_norm(x, self.norm.weight, self.config.rms_norm_eps)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """Logits over the draft vocabulary, before any Markov bias: [N, d] to [N, V_d]."""
        return self.kernels.linear(hidden, self._head())

    def _head(self) -> Tensor:
        if self._borrowed.head is not None:
            return self._borrowed.head
        if not self.config.owns_head:
            raise RuntimeError("bind_target was not called")
        return self.lm_head.weight
