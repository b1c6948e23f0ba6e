"""How a draft is chosen from a drafter's logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.sampling.draw import GumbelDraw
from slipstream.sampling.noise import NoiseStream, key_tensor, noise_key, stream_key
from slipstream.sampling.rejection import DrawnDistribution
from slipstream.sampling.sampler import first_argmax
from slipstream.scheduler.protocol import DraftDistribution, DraftRequest


class DraftSampler:
    """Chooses drafts over a draft vocabulary, at T > 0 by one of three methods (`draft_sample_method`).

    `coupled`: argmax(logits / T + Gumbel noise), the noise being the target's own (design 5): that of the output
    position it drafts for, of the request's seed and of the *target* token id. So where drafter and target agree on a
    distribution, they draw the same token. `probabilistic`: the same with noise of its own, for the textbook rejection
    rule, which must know what each draft was drawn from: the logits are kept. `greedy`: the likeliest token. Other
    sampling parameters (top_p, penalties, …) do not count here.

    Args:
        target_ids: int64 [V_d], target id of each draft id.
        vocab_size: of the target.
    """

    def __init__(self, target_ids: Tensor, vocab_size: int, method: str = "coupled") -> None:
        self.target_ids = target_ids
        self.draw = GumbelDraw(vocab_size, target_ids.device, target_ids)
        self.method = method

    def chooser(self, requests: Sequence[DraftRequest]) -> DraftChooser:
        """The choice rule for a batch whose rows of logits are these requests', in order."""
        return DraftChooser(self, requests)


class DraftChooser:
    """The drafts of one batch of R requests, position after position: a `Choose` (heads.py) that knows afterwards what
    it drew from."""

    def __init__(self, sampler: DraftSampler, requests: Sequence[DraftRequest]) -> None:
        self._sampler = sampler
        self._requests = requests
        drawn = [i for i, request in enumerate(requests) if not request.sampling.is_greedy]
        self._drawn = [] if sampler.method == "greedy" else drawn
        self._places = {index: place for place, index in enumerate(self._drawn)}
        self._kept: list[Tensor] = []

    @property
    def keeps_logits(self) -> bool:
        """Whether something must be known of the logits afterwards, so that they must come by here."""
        return self._sampler.method == "probabilistic" and bool(self._drawn)

    def noise(self, num_drafts: int) -> tuple[Tensor, Tensor]:
        """For drawing elsewhere: the temperatures that drafts are drawn at, float64 [R], 0 for greedy ones; and the
        keys of their noise, int64 [R, K]."""
        temperatures = torch.zeros(len(self._requests), dtype=torch.float64)
        keys = torch.zeros((len(self._requests), num_drafts), dtype=torch.int64)
        for i in self._drawn:
            request = self._requests[i]
            temperatures[i] = request.sampling.temperature
            keys[i] = key_tensor([self._key(request, k) for k in range(num_drafts)], "cpu")
        return temperatures, keys

    def __call__(self, k: int, logits: Tensor) -> Tensor:
        """Draft k of everybody from logits [R, V_d]: target ids, int64 [R]."""
        sampler = self._sampler
        columns, tops = first_argmax(logits)
        token_ids = sampler.target_ids[columns]
        if self._drawn:
            rows = torch.tensor(self._drawn, device=logits.device)
            chosen = logits[rows]
            if sampler.method == "probabilistic":
                self._kept.append(chosen)
            temperatures = [self._requests[i].sampling.temperature for i in self._drawn]
            keys = [self._key(self._requests[i], k) for i in self._drawn]
            drawn = sampler.draw.rows(chosen, columns[rows].tolist(), tops[rows].tolist(), temperatures, keys)
            token_ids[rows] = torch.tensor(drawn, device=logits.device)
        return token_ids

    def distributions(self, index: int) -> Sequence[DraftDistribution]:
        """What the drafts of request `index` were drawn from, one each; empty where equality is to judge them.

        They hold the batch's logits, R x V_d numbers per draft, until the last of them is dropped.
        """
        place = self._places.get(index)
        if place is None:
            return ()
        temperature = self._requests[index].sampling.temperature
        return [DrawnDistribution(logits[place], self._sampler.target_ids, temperature) for logits in self._kept]

    def _key(self, request: DraftRequest, k: int) -> int:
        position = len(request.token_ids) - request.num_prompt_tokens + k
        key = noise_key(request.seed, request.choice_index, position)
        return stream_key(key, NoiseStream.DRAFT, k) if self._sampler.method == "probabilistic" else key
