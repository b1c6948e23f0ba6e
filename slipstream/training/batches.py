"""Which dialogues and anchors a step trains on: a pure function of seed and step, so a run can go on from any step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.training.blocks import BlockBatch, build_blocks, choose_anchors
from slipstream.training.corpus import Dialogue
from slipstream.training.target_states import StateSource, TokenStates


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Blocks, and the target's states of the same tokens."""

    blocks: BlockBatch
    states: TokenStates


class BatchMaker:
    """Batches of a list of dialogues.

    Args:
        numbers: of `dialogues`, as the state source knows them.
    """

    def __init__(
        self,
        config: DrafterConfig,
        dialogues: Sequence[Dialogue],
        numbers: Sequence[int],
        source: StateSource,
        *,
        num_anchors: int,
        device: torch.device,
    ) -> None:
        self.dialogues = dialogues
        self._config = config
        self._numbers = numbers
        self._source = source
        self._num_anchors = num_anchors
        self._device = device

    def make(self, members: Sequence[int], seed: Sequence[int]) -> TrainingBatch:
        """Blocks from dialogues `members`, at anchors drawn by `seed`."""
        dialogues, anchors = [], []
        for member in members:
            dialogue = self.dialogues[member]
            dialogues.append(dialogue)
            anchors.append(choose_anchors(dialogue, self._num_anchors, (*seed, member)))
        blocks = build_blocks(self._config, dialogues, anchors).to(self._device)
        return TrainingBatch(blocks, self._source.states([self._numbers[member] for member in members]))

    def at_step(self, step: int, num_sequences: int, seed: int) -> TrainingBatch:
        """The batch of a training step: each epoch goes through all dialogues in an order of its own."""
        order = _EpochOrder(len(self.dialogues), seed)
        first = step * num_sequences
        return self.make([order.at(place) for place in range(first, first + num_sequences)], (seed, step))


class _EpochOrder:
    """Place in an endless walk -> dialogue."""

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._orders: dict[int, NDArray[np.int64]] = {}

    def at(self, place: int) -> int:
        epoch, position = divmod(place, self._count)
        if epoch not in self._orders:
            self._orders[epoch] = np.random.default_rng((self._seed, epoch)).permutation(self._count)
        return int(self._orders[epoch][position])
