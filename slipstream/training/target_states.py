"""What the target knows of each token: the tapped layers and the final state. Made on the fly, or kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.models.protocol import TransformerDecoder
from slipstream.training.corpus import Dialogue

BLOCK_SIZE = 16
LOGIT_ROWS = 256
"""Rows whose logits over the whole vocabulary are held at a time."""


@dataclass(frozen=True, slots=True)
class TokenStates:
    """Of T tokens.

    Attributes:
        tapped: outputs of the tapped layers side by side, ascending, [T, m * d_t].
        final: state after the final norm, from which the head predicts the next token, [T, d_t].
        log_normalisers: log of the sum of exp(logits) of that prediction, float32 [T]; 0 where no answer's token
            follows, since nobody asks there.
        choices: the likeliest next token, int64 [T]; 0 in the same places.
    """

    tapped: Tensor
    final: Tensor
    log_normalisers: Tensor
    choices: Tensor


class StateSource(Protocol):
    """Gives target states of dialogues."""

    def states(self, numbers: Sequence[int]) -> TokenStates:
        """Of the dialogues with these numbers, one after the other."""
        ...


class TargetReader:
    """Runs the target over whole dialogues, several at a time.

    Args:
        max_rows: tokens of one pass; a longer dialogue runs alone.
    """

    def __init__(self, decoder: TransformerDecoder, layers: Sequence[int], *, max_rows: int = 2048) -> None:
        self.decoder = decoder
        self.layers = tuple(layers)
        self.max_rows = max_rows
        self._cache = decoder.make_cache(1, BLOCK_SIZE)

    def groups(self, dialogues: Sequence[Dialogue]) -> list[list[int]]:
        """Indices of dialogues that share a pass, in order."""
        groups: list[list[int]] = []
        rows = 0
        for i, dialogue in enumerate(dialogues):
            if not groups or rows + len(dialogue) > self.max_rows:
                groups.append([])
                rows = 0
            groups[-1].append(i)
            rows += len(dialogue)
        return groups

    @torch.inference_mode()
    def read(self, dialogues: Sequence[Dialogue]) -> TokenStates:
        """States of the tokens of all dialogues, one after the other, in passes of `max_rows`."""
        parts = [self._pass([dialogues[i] for i in group]) for group in self.groups(dialogues)]
        return join_states(parts)

    def _pass(self, dialogues: Sequence[Dialogue]) -> TokenStates:
        decoder = self.decoder
        requests: list[AttentionRequest] = []
        row = block = 0
        for dialogue in dialogues:
            blocks = -(-len(dialogue) // BLOCK_SIZE)
            requests.append(AttentionRequest(row, len(dialogue), 0, list(range(block, block + blocks))))
            row, block = row + len(dialogue), block + blocks
        if block > self._cache.num_blocks:
            self._cache = decoder.make_cache(block, BLOCK_SIZE)
        cache, device = self._cache, decoder.device
        metadata = build_metadata(requests, BLOCK_SIZE, cache.scratch_block, device)
        token_ids = torch.cat([torch.from_numpy(d.token_ids).long() for d in dialogues]).to(device)
        output = decoder.forward(token_ids, metadata, cache, self.layers)
        final = decoder.final_norm(output.hidden)
        normalisers, choices = torch.zeros(row, device=device), torch.zeros(row, dtype=torch.int64, device=device)
        wanted = torch.cat([torch.from_numpy(d.is_answer).roll(-1) for d in dialogues]).nonzero()[:, 0].to(device)
        for rows in wanted.split(LOGIT_ROWS):  # type: ignore[no-untyped-call]
            logits = decoder.compute_logits(output.hidden[rows])
            choices[rows] = logits.argmax(dim=-1)
            normalisers[rows] = logits.float().logsumexp(dim=-1)
        tapped = torch.cat([output.layer_hidden[layer] for layer in self.layers], dim=-1)
        return TokenStates(tapped, final, normalisers, choices)


class FreshStates:
    """States made whenever they are asked for: no disk, but the target runs again in every epoch."""

    def __init__(self, reader: TargetReader, dialogues: Sequence[Dialogue]) -> None:
        self._reader = reader
        self._dialogues = dialogues

    def states(self, numbers: Sequence[int]) -> TokenStates:
        """See StateSource."""
        return self._reader.read([self._dialogues[number] for number in numbers])


def join_states(parts: Sequence[TokenStates]) -> TokenStates:
    """One after the other. The tensors are no inference tensors: they may take part in training."""
    names = ("tapped", "final", "log_normalisers", "choices")
    with torch.inference_mode(False):
        return TokenStates(*(torch.cat([getattr(part, name).clone() for part in parts]) for name in names))
