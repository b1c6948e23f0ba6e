"""How a block drafter's passes run on a target's kernels, apart from what is drafted with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.invariant import InvariantAttention
from slipstream.attention.metadata import AttentionMetadata
from slipstream.attention.protocol import AttentionBackend, StepAttention
from slipstream.kernels.invariant import InvariantKernels
from slipstream.kernels.protocol import RowKernels
from slipstream.models.decoder import Decoder
from slipstream.models.native_decoder import NativeDecoder
from slipstream.models.protocol import TransformerDecoder
from slipstream.speculation.draft_sampling import DraftChooser
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.heads import DraftedBlocks, draw_blocks
from slipstream.speculation.native_network import NativeNetwork, network_misfit


class DrafterNetwork(Protocol):
    """A drafter's weights, ready to run.

    Attributes:
        cache_dtype: of its KV.
    """

    cache_dtype: torch.dtype

    def write_context(
        self, layer_hidden: Mapping[int, Tensor], metadata: AttentionMetadata, cache: PagedKVCache
    ) -> None:
        """Context KV of the target's rows, from the tapped layers' outputs [N, d_t] each."""
        ...

    def block_hidden(self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache) -> Tensor:
        """Block rows' hidden states after the final norm, from target ids [N]: [N, d]. Writes their KV."""
        ...

    def draw(self, hidden: Tensor, anchors: Tensor, chooser: DraftChooser) -> DraftedBlocks:
        """Drafts of R requests, one position after the other.

        Args:
            hidden: of the rows that predict drafts, [R, K, d]. anchors: newest committed tokens, int64 [R].
        """
        ...


class TorchNetwork:
    """By PyTorch, in the type of the model's weights. Packs the model."""

    def __init__(self, model: DrafterModel, attention: AttentionBackend, num_positions: int) -> None:
        model.pack()
        self.cache_dtype = model.fc.weight.dtype
        self._model = model
        self._attention = attention
        self._rotary = model.make_rotary(num_positions)

    def write_context(
        self, layer_hidden: Mapping[int, Tensor], metadata: AttentionMetadata, cache: PagedKVCache
    ) -> None:
        """See DrafterNetwork."""
        tapped = torch.cat([layer_hidden[layer] for layer in self._model.config.target_layer_ids], dim=-1)
        features = self._model.context_features(tapped)
        rotary = self._rotary.at(metadata.positions)
        for layer, key_value in enumerate(self._model.context_key_values(features, rotary)):
            cache.write(layer, key_value, metadata.slots)

    def block_hidden(self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache) -> Tensor:
        """See DrafterNetwork."""
        patterns = self._model.config.patterns
        steps: dict[object, StepAttention] = {
            pattern: self._attention.begin_step(replace(metadata, pattern=pattern), cache) for pattern in set(patterns)
        }

        def attend(layer: int, query: Tensor, key_value: Tensor) -> Tensor:
            cache.write(layer, key_value, metadata.slots)
            return steps[patterns[layer]].attend(layer, query)

        rows = self._model.embed(token_ids)
        return self._model.run_block_rows(rows, self._rotary.at(metadata.positions), attend)

    def draw(self, hidden: Tensor, anchors: Tensor, chooser: DraftChooser) -> DraftedBlocks:
        """See DrafterNetwork."""
        model = self._model
        logits = model.base_logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
        return draw_blocks(logits, hidden, anchors, chooser, model.markov_head, model.confidence_head)


def drafter_kernels(target: TransformerDecoder) -> RowKernels:
    """Which row kernels a drafter's model is to be loaded with, for this target."""
    return target.kernels if isinstance(target, Decoder) else InvariantKernels()


def build_network(model: DrafterModel, target: TransformerDecoder) -> DrafterNetwork:
    """Bind a model to its target, and make it ready to run on the target's kernels where they take its shape."""
    if isinstance(target, NativeDecoder) and network_misfit(model.config) is None:
        return NativeNetwork(model, target)
    assert isinstance(target, (Decoder, NativeDecoder))
    model.bind_target(target.embedding, target.head)
    attention = target.attention if isinstance(target, Decoder) else InvariantAttention()
    return TorchNetwork(model, attention, target.num_positions)
