"""How a draft is chosen from a drafter's logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.sampling.draw import GumbelDraw
from slipstream.sampling.noise import noise_key
from slipstream.sampling.sampler import first_argmax
from slipstream.scheduler.protocol import DraftRequest
from slipstream.speculation.heads import Choose


class DraftSampler:
    """Chooses drafts over a draft vocabulary, with the target's own noise (design 5).

    At T > 0 a draft is argmax(logits / T + Gumbel noise), the noise being that of the output position it drafts for,
    of the request's seed and of the *target* token id. So where drafter and target agree on a distribution, they draw
    the same token. Other sampling parameters (top_p, penalties, …) do not count here.

    Args:
        target_ids: int64 [V_d], target id of each draft id.
        vocab_size: of the target.
        is_coupled: False takes the likeliest token at every temperature, for comparison.
    """

    def __init__(self, target_ids: Tensor, vocab_size: int, *, is_coupled: bool = True) -> None:
        self._target_ids = target_ids
        self._draw = GumbelDraw(vocab_size, target_ids.device, target_ids)
        self._is_coupled = is_coupled

    def chooser(self, requests: Sequence[DraftRequest]) -> Choose:
        """The choice rule for a batch whose rows of logits are these requests', in order."""
        sampled = [i for i, r in enumerate(requests) if self._is_coupled and not r.sampling.is_greedy]
        temperatures = [requests[i].sampling.temperature for i in sampled]
        first = [len(requests[i].token_ids) - requests[i].num_prompt_tokens for i in sampled]

        def choose(k: int, logits: Tensor) -> Tensor:
            columns, tops = first_argmax(logits)
            token_ids = self._target_ids[columns]
            if sampled:
                keys = [
                    noise_key(requests[i].seed, requests[i].choice_index, position + k)
                    for i, position in zip(sampled, first, strict=True)
                ]
                rows = torch.tensor(sampled, device=logits.device)
                drawn = self._draw.rows(logits[rows], columns[rows].tolist(), tops[rows].tolist(), temperatures, keys)
                token_ids[rows] = torch.tensor(drawn, device=logits.device)
            return token_ids

        return choose
