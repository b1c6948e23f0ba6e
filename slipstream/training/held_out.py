"""How a drafter in training does on dialogues it never trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.training.batches import BatchMaker
from slipstream.training.block_pass import BlockPass, BlockResult


@dataclass(frozen=True, slots=True)
class HeldOutFigures:
    """Over the blocks of held-out dialogues; drafts are judged with the text before them given (teacher forcing).

    Attributes:
        loss: as in training.
        sampled_length: 1 + the mean over blocks of the sum over k of the product of overlaps up to k: expected tokens
            of a step under the textbook rule at temperature 1 (tau of the DSpark training code).
        greedy_length: the same with matches of the likeliest tokens, temperature 0.
        overlap, match: mean by position, over drafts that are counted: acceptance given that all before were right.
        num_blocks: how many.
    """

    loss: float
    sampled_length: float
    greedy_length: float
    overlap: tuple[float, ...]
    match: tuple[float, ...]
    num_blocks: int

    def in_words(self) -> str:
        """One line."""
        matches = " ".join(f"{share:.2f}" for share in self.match)
        return (
            f"held-out acceptance length {self.greedy_length:.3f} greedy ({matches}), {self.sampled_length:.3f} "
            f"sampled; loss {self.loss:.3f}"
        )


@torch.no_grad()
def measure(block_pass: BlockPass, batches: BatchMaker, num_sequences: int, seed: int) -> HeldOutFigures:
    """Figures over all dialogues of `batches`, at anchors that depend on the seed alone."""
    block_pass.model.eval()
    results: list[BlockResult] = []
    members = range(len(batches.dialogues))
    for first in range(0, len(members), num_sequences):
        batch = batches.make(members[first : first + num_sequences], (seed,))
        if batch.blocks.num_blocks and bool(batch.blocks.is_counted.any()):
            results.append(block_pass.run(batch))
    block_pass.model.train()
    return figures_of(results)


def figures_of(results: Sequence[BlockResult]) -> HeldOutFigures:
    """Joined figures of several batches; at least one block."""
    counted = torch.cat([result.is_counted for result in results]).float()
    overlap = torch.cat([result.overlap for result in results])
    match = torch.cat([result.is_match for result in results]).float()
    sizes = [len(result.is_counted) for result in results]
    loss = sum(float(result.loss) * size for result, size in zip(results, sizes, strict=True)) / sum(sizes)
    by_position = counted.sum(dim=0).clamp(min=1.0)
    return HeldOutFigures(
        loss=loss,
        sampled_length=1.0 + float(overlap.cumprod(dim=1).sum(dim=1).mean()),
        greedy_length=1.0 + float(match.cumprod(dim=1).sum(dim=1).mean()),
        overlap=tuple((overlap.sum(dim=0) / by_position).tolist()),
        match=tuple((match.sum(dim=0) / by_position).tolist()),
        num_blocks=sum(sizes),
    )
