"""Blocks to train on: an anchor in an answer, masks behind it, and the tokens they are to predict.

Source: DSpark (arXiv 2607.05147) and its public training code, in our own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.training.corpus import Dialogue


def choose_anchors(dialogue: Dialogue, count: int, seed: Sequence[int]) -> NDArray[np.int64]:
    """Up to `count` positions p, ascending, drawn without replacement from those where x_p and x_{p+1} are the
    target's own: p is an anchor in serving exactly if the target wrote it, and there must be something to predict.

    Args:
        seed: numbers that name this draw; the same give the same anchors.
    """
    answer = dialogue.is_answer
    candidates = np.flatnonzero(answer[:-1] & answer[1:])
    if len(candidates) > count:
        candidates = np.sort(np.random.default_rng(seed).choice(candidates, count, replace=False))
    return candidates


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a batch that belongs to one dialogue: slices of context tokens and of block rows."""

    context_start: int
    context_length: int
    row_start: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Blocks of several dialogues. T context tokens, A blocks of R rows, K drafts each.

    Attributes:
        spans: one per dialogue.
        context_positions: int64 [T].
        row_token_ids, row_positions: int64 [A * R].
        anchors: position of each block's anchor in its dialogue, int64 [A].
        previous: token before each draft, teacher forced, target ids, int64 [A, K].
        labels: the token that each draft is to be, target ids, int64 [A, K].
        source_tokens: context token whose target state predicts the label, as an index into [0, T), int64 [A, K].
        is_counted: [A, K]: the label is part of the answer, and so are all before it.
    """

    spans: tuple[Span, ...]
    context_positions: Tensor
    row_token_ids: Tensor
    row_positions: Tensor
    anchors: Tensor
    previous: Tensor
    labels: Tensor
    source_tokens: Tensor
    is_counted: Tensor

    @property
    def num_blocks(self) -> int:
        """A."""
        return len(self.anchors)

    def to(self, device: torch.device) -> BlockBatch:
        """On another device."""
        moved = {name: getattr(self, name).to(device) for name in self.__slots__ if name != "spans"}
        return BlockBatch(spans=self.spans, **moved)


def build_blocks(
    config: DrafterConfig, dialogues: Sequence[Dialogue], anchors: Sequence[NDArray[np.int64]]
) -> BlockBatch:
    """Lay out the blocks of `dialogues` at `anchors`; every dialogue's tokens are context in full."""
    num_rows, num_drafts = config.block_size, config.max_draft_tokens
    steps = np.arange(num_drafts)
    spans: list[Span] = []
    parts: dict[str, list[NDArray[np.int64] | NDArray[np.bool_]]] = {
        name: [] for name in ("positions", "rows", "row_positions", "previous", "labels", "sources", "counted")
    }
    context_start = row_start = 0
    for dialogue, chosen in zip(dialogues, anchors, strict=True):
        length, count = len(dialogue), len(chosen)
        ids = dialogue.token_ids.astype(np.int64)
        places = chosen[:, None] + steps  # of the token before each label
        inside = places + 1 < length
        counted = inside & dialogue.is_answer[np.minimum(places + 1, length - 1)]
        rows = np.full((count, num_rows), config.mask_token_id, np.int64)
        rows[:, 0] = ids[chosen]
        parts["positions"].append(np.arange(length))
        parts["rows"].append(rows.ravel())
        parts["row_positions"].append((chosen[:, None] + np.arange(num_rows)).ravel())
        parts["previous"].append(ids[np.minimum(places, length - 1)])
        parts["labels"].append(ids[np.minimum(places + 1, length - 1)])
        parts["sources"].append(context_start + np.minimum(places, length - 1))
        parts["counted"].append(np.logical_and.accumulate(counted, axis=1))
        spans.append(Span(context_start, length, row_start, count))
        context_start += length
        row_start += count * num_rows
    joined = {name: torch.from_numpy(np.concatenate(values)) for name, values in parts.items()}
    return BlockBatch(
        spans=tuple(spans),
        context_positions=joined["positions"],
        row_token_ids=joined["rows"],
        row_positions=joined["row_positions"],
        anchors=torch.from_numpy(np.concatenate(list(anchors)).astype(np.int64)),
        previous=joined["previous"],
        labels=joined["labels"],
        source_tokens=joined["sources"],
        is_counted=joined["counted"],
    )
