"""The seam between a decoder and the way its attention is computed."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata


class StepAttention(Protocol):
    """Attention of one step, ready to run for each layer in turn."""

    def attend(self, layer: int, query: Tensor) -> Tensor:
        """Attention of query rows [N, num_heads, head_dim] to their requests' KV: [N, num_heads, head_dim].

        A row sees what the metadata's pattern says; by default every token up to its own.

        The step's own keys and values must have been written to the cache before.
        """
        ...


class AttentionBackend(Protocol):
    """Makes a StepAttention: everything that does not depend on the layer is done here, once per step."""

    def begin_step(self, metadata: AttentionMetadata, cache: PagedKVCache) -> StepAttention: ...
