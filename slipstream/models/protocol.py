"""What engines, drafters and training ask of a decoder, however its arithmetic runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata
from slipstream.models.config import DecoderConfig
from slipstream.models.decoder import DecoderOutput


class TransformerDecoder(Protocol):
    """A Decoder (models/decoder.py) or a NativeDecoder (models/native_decoder.py).

    Attributes:
        dtype, device: of hidden states. cache_dtype: of KV.
        num_positions: rows must lie at positions below this.
        source_fingerprint: of the weights as they are stored; None where it was not taken.
        tile_rows: rows that run together, always as many; None where a step's rows run as one.
        description: number formats and arithmetic, for reports: "float32", "int8 (avx2)".
    """

    config: DecoderConfig
    dtype: torch.dtype
    device: torch.device
    cache_dtype: torch.dtype
    num_positions: int
    source_fingerprint: str | None

    @property
    def tile_rows(self) -> int | None: ...
    @property
    def description(self) -> str: ...

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """An empty cache of this decoder's shape and device."""
        ...

    def forward(
        self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache, hidden_layers: Sequence[int] = ()
    ) -> DecoderOutput:
        """Run rows of any mix of requests, writing their KV to the cache (see Decoder)."""
        ...

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Chosen rows of `DecoderOutput.hidden` as the output projection takes them, [M, hidden]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Final norm and output projection of chosen rows: [M, hidden] to [M, vocabulary]."""
        ...
