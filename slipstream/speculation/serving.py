"""What drafters and the executor of a real model exchange beside the Drafter protocol (scheduler/protocol.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.attention.metadata import AttentionMetadata
from slipstream.config import SpeculativeSettings
from slipstream.models.loading import ModelSource
from slipstream.models.protocol import TransformerDecoder
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import Drafter


@dataclass(frozen=True, slots=True)
class TargetStates:
    """What the target's pass leaves for drafters, for all N rows, rows of refused drafts included.

    Attributes:
        token_ids: input of each row, int64 [N].
        layer_hidden: outputs of the tapped layers, [N, d_t] each (see DecoderOutput).
        metadata: positions and slots of the rows.
    """

    token_ids: Tensor
    layer_hidden: Mapping[int, Tensor]
    metadata: AttentionMetadata


class TargetObserver(Protocol):
    """A drafter that must see every pass of the target, drafting or not: else its KV would have holes.

    Attributes:
        tapped_layers: the layers whose outputs it reads, as `Decoder.forward(hidden_layers=…)` counts them.
    """

    @property
    def tapped_layers(self) -> Sequence[int]: ...

    def observe(self, states: TargetStates) -> None:
        """Called after each pass of the target, before anything is proposed. Raising costs drafts, never an answer."""
        ...


@dataclass(frozen=True, slots=True)
class ServingTarget:
    """The real model that a drafter is built for, and the KV pool whose block ids they share."""

    decoder: TransformerDecoder
    num_kv_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class ServingDrafter:
    """A drafter ready to run. observer: None for drafters that do not read the target's states."""

    drafter: Drafter
    observer: TargetObserver | None = None


class DrafterSource(Protocol):
    """A speculation method whose settings were checked and whose files were found, before any weights are read."""

    @property
    def settings(self) -> SpeculativeSettings:
        """With every value decided that the method decides (K, the drafter's own position limit)."""
        ...

    @property
    def layout(self) -> DraftLayout:
        """Whose budgets it obeys."""
        ...

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of drafter KV per token of the pool."""
        ...

    def check_target(self, target: ModelSource) -> None:
        """Raise ModelLoadError when it was made for another model, by everything that is known without weights."""
        ...

    def build(self, target: ServingTarget | None) -> ServingDrafter:
        """Read weights, allocate KV. `target` is None where no real model runs.

        Raises:
            SettingError: the method needs a real model. ModelLoadError: its files are broken.
        """
        ...
