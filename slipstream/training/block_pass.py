"""One pass of a drafter over a batch of blocks, and its loss and figures."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.models.rope import RotaryTable
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.training.batches import TrainingBatch
from slipstream.training.block_attention import BlockAttention
from slipstream.training.block_loss import DraftLoss, TargetRows, draft_loss
from slipstream.training.settings import LossWeights


@dataclass(frozen=True, slots=True)
class BlockResult:
    """Of A blocks with K drafts.

    Attributes:
        loss: mean over counted drafts, weighted by position, with gradient. parts: its summands, as numbers.
        is_counted: [A, K]. overlap: 1 - |p_d - p_t| / 2, the chance that the textbook rule accepts at temperature 1,
            float32 [A, K]; is_match: a draft would be accepted at temperature 0, bool [A, K]; both given the text
            before, and 0 where not counted.
        confidence: the confidence head's chance, [A, K], or None.
    """

    loss: Tensor
    parts: dict[str, float]
    is_counted: Tensor
    overlap: Tensor
    is_match: Tensor
    confidence: Tensor | None


class BlockPass:
    """Runs a drafter on batches.

    Args:
        model: bound to the target.
        head: rows of the target's head for the draft vocabulary, [V_d, d], in the type that products run in.
        compute: type of products; parameters stay float32 where this is bfloat16.
    """

    def __init__(
        self, model: DrafterModel, head: Tensor, rotary: RotaryTable, weights: LossWeights, compute: torch.dtype
    ) -> None:
        self.model = model
        self._head = head.to(compute)
        self._rotary = rotary
        self._weights = weights
        self._compute = compute
        config = model.config
        self._draft_ids = torch.full((config.vocab_size,), -1, device=head.device)
        self._draft_ids[model.target_ids] = torch.arange(config.draft_vocab_size, device=head.device)
        steps = torch.arange(config.max_draft_tokens, device=head.device)
        self._decay = torch.exp(-steps / weights.decay)

    def run(self, batch: TrainingBatch) -> BlockResult:
        """Forward pass and loss."""
        with self._autocast(batch.states.tapped.device):
            return self._run(batch)

    def _run(self, batch: TrainingBatch) -> BlockResult:
        model, config, blocks, states = self.model, self.model.config, batch.blocks, batch.states
        features = model.context_features(states.tapped.to(self._parameter_type()))
        context = model.context_key_values(features, self._rotary.at(blocks.context_positions))
        attend = BlockAttention(config, blocks, context)
        x = model.embed(blocks.row_token_ids).to(self._parameter_type())
        hidden = model.run_block_rows(x, self._rotary.at(blocks.row_positions), attend)
        hidden = hidden.view(blocks.num_blocks, config.block_size, -1)[:, config.first_draft_row :]
        counted = blocks.is_counted.flatten().nonzero()[:, 0]  # no product is spent on the others
        markov, weights = model.markov_head, self._decay.expand_as(blocks.previous).flatten()[counted]
        kept = hidden.flatten(0, 1)[counted]
        markov_rows = markov_weight = None
        if markov is not None:
            markov_rows = markov.teacher_forced_features(blocks.previous, hidden).flatten(0, 1)[counted]
            markov_weight = markov.markov_w2.weight
        sources = blocks.source_tokens.flatten()[counted]
        target = TargetRows(
            states.final[sources],
            states.log_normalisers[sources],
            labels=self._draft_ids[blocks.labels.flatten()[counted]],
            choices=self._draft_ids[states.choices[sources]],
        )
        result = draft_loss(kept, markov_rows, markov_weight, self._head, target, weights, self._weights)
        total = weights.sum().clamp(min=1e-6)
        loss = result.total / total
        parts = {name: float((getattr(result, name) * weights).sum() / total) for name in ("cross_entropy", "l1", "kl")}
        chances = None
        if model.confidence_head is not None:
            embedded = None if markov is None else markov.embed(blocks.previous).flatten(0, 1)[counted]
            logits = model.confidence_head(kept, embedded)
            entropy = functional.binary_cross_entropy_with_logits(
                logits.float(), 1.0 - 0.5 * result.l1, weight=weights, reduction="sum"
            )
            loss = loss + self._weights.confidence * entropy / total
            parts["confidence"] = float(entropy.detach() / total)
            chances = self._spread(logits.detach().float().sigmoid(), counted, blocks.is_counted)
        return self._result(loss, parts, result, counted, blocks.is_counted, chances)

    def _result(
        self,
        loss: Tensor,
        parts: dict[str, float],
        result: DraftLoss,
        counted: Tensor,
        is_counted: Tensor,
        chances: Tensor | None,
    ) -> BlockResult:
        overlap = self._spread((1.0 - 0.5 * result.l1).clamp(min=0.0), counted, is_counted)
        is_match = self._spread(result.is_match.float(), counted, is_counted) > 0
        return BlockResult(loss, parts | {"loss": float(loss.detach())}, is_counted, overlap, is_match, chances)

    def _spread(self, values: Tensor, counted: Tensor, like: Tensor) -> Tensor:
        """Values of the counted drafts in the shape of all."""
        spread = torch.zeros(like.numel(), device=values.device)
        spread[counted] = values
        return spread.view(like.shape)

    def _parameter_type(self) -> torch.dtype:
        return self.model.fc.weight.dtype

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        is_mixed = self._compute != self._parameter_type()
        return torch.autocast(device.type, self._compute, enabled=is_mixed)
