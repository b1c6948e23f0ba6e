"""How often drafts are accepted at T > 0, beside how often the coupling formula says that they are (design 5).

Two samplers listen: the drafter's for the distribution q of each draft, the target's for the distribution p of the row
that verifies it. Given that the drafts before it were accepted, a draft matches with a chance that p and q alone give:
the formula's for a coupled draft, p(draft) for a greedy one. Noise of a position that was drafted before, in vain, has
no part in what was written since, so it is as good as fresh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.execution.executor import TorchExecutor
from slipstream.sampling.acceptance import coupled_match_probabilities
from slipstream.sampling.filters import has_filters
from slipstream.sampling.processing import needs_processing
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.protocol import DraftRequest, SampledTokens, SampleRow
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.draft_sampling import DraftChooser, DraftSampler

_Key = tuple[int, int, int]  # seed, choice index, output position


@dataclass(frozen=True, slots=True)
class PositionMatches:
    """Verified drafts of one position whose predecessors were all accepted.

    Attributes:
        num_events: how many.
        expected: mean chance of a match, given the distributions. measured: share that matched.
        standard_error: of measured - expected, which has mean 0 where the formula holds.
    """

    num_events: int
    expected: float
    measured: float
    standard_error: float

    @property
    def difference(self) -> float:
        """Measured less expected."""
        return self.measured - self.expected

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return asdict(self) | {"difference": self.difference}


class MatchCollector:
    """Pairs each verified draft with the two distributions.

    Args:
        target_ids: target id of each draft id, int64 [V_d].
        is_coupled: how drafts are chosen.
    """

    def __init__(self, target_ids: Tensor, *, is_coupled: bool) -> None:
        self._target_ids = target_ids
        self._is_coupled = is_coupled
        self._drafted: dict[_Key, Tensor] = {}
        self._expected: list[list[float]] = []
        self._matched: list[list[bool]] = []

    def drafting(self, requests: Sequence[DraftRequest], k: int, logits: Tensor) -> None:
        """Draft number k (from 0) of these requests is about to be chosen from logits [R, V_d]."""
        for row, request in zip(logits, requests, strict=True):
            if k < request.num_draft_tokens and not request.sampling.is_greedy:
                place = len(request.token_ids) - request.num_prompt_tokens + k
                probabilities = torch.softmax(row.double() / request.sampling.temperature, dim=-1)
                self._drafted[request.seed, request.choice_index, place] = probabilities

    def sampled(self, logits: Tensor, rows: Sequence[SampleRow], token_ids: Sequence[int]) -> None:
        """The target drew these tokens from logits [N, V].

        Raises:
            ValueError: a request has sampling parameters beside its temperature, of which the formula knows nothing.
        """
        follows = False  # every draft before it was accepted, and none of them ended the text
        for row_logits, row, token_id in zip(logits, rows, token_ids, strict=True):
            depth = row.num_drafts
            follows = follows or depth == 0
            if not follows or depth >= len(row.draft_token_ids) or row.sampling.is_greedy:
                continue
            if has_filters(row.sampling) or needs_processing(row):
                raise ValueError("the coupling formula is compared for requests with a temperature and nothing else")
            draft = row.draft_token_ids[depth]
            probabilities = torch.softmax(row_logits.double() / row.sampling.temperature, dim=-1)
            drafted = self._drafted.pop((row.seed, row.choice_index, row.output_position))
            self._add(depth, self._chance(probabilities, drafted, draft), draft == token_id)
            follows = draft == token_id and draft not in row.stop_token_ids

    def positions(self) -> list[PositionMatches]:
        """By draft position."""
        found = []
        for expected, matched in zip(self._expected, self._matched, strict=True):
            gaps = torch.tensor(matched, dtype=torch.float64) - torch.tensor(expected, dtype=torch.float64)
            count = len(matched)
            error = float(gaps.std()) / math.sqrt(count) if count > 1 else math.inf
            found.append(PositionMatches(count, sum(expected) / count, sum(matched) / count, error))
        return found

    def _chance(self, target: Tensor, draft: Tensor, token_id: int) -> float:
        """Of a match between a draw from `target` [V] and this draft, which came of `draft` [V_d]."""
        if not self._is_coupled:
            return float(target[token_id])
        return float(coupled_match_probabilities(target[self._target_ids][None], draft[None]))

    def _add(self, depth: int, expected: float, is_match: bool) -> None:
        if depth == len(self._matched):
            self._expected.append([])
            self._matched.append([])
        self._expected[depth].append(expected)
        self._matched[depth].append(is_match)


class _HeardDraftSampler(DraftSampler):
    """A DraftSampler that tells what drafts are drawn from."""

    def __init__(self, collector: MatchCollector, target_ids: Tensor, vocab_size: int, method: str) -> None:
        super().__init__(target_ids, vocab_size, method)
        self._collector = collector

    def chooser(self, requests: Sequence[DraftRequest]) -> DraftChooser:
        """See DraftSampler."""
        return _HeardChooser(self, requests, self._collector)


class _HeardChooser(DraftChooser):
    def __init__(self, sampler: DraftSampler, requests: Sequence[DraftRequest], collector: MatchCollector) -> None:
        super().__init__(sampler, requests)
        self._heard = requests
        self._collector = collector

    @property
    def keeps_logits(self) -> bool:
        """Yes: those of every draft are to be heard."""
        return True

    def __call__(self, k: int, logits: Tensor) -> Tensor:
        self._collector.drafting(self._heard, k, logits)
        return super().__call__(k, logits)


class _HeardSampler(Sampler):
    """A Sampler that tells what it drew, and from what."""

    def __init__(self, collector: MatchCollector, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._collector = collector

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> SampledTokens:
        """See Sampler."""
        sampled = super().sample(logits, rows)
        self._collector.sampled(logits, rows, sampled.token_ids)
        return sampled


def collect_matches(executor: TorchExecutor, *, is_coupled: bool) -> MatchCollector:
    """Let a collector hear what an executor with a block drafter draws from now on; it draws the same as before.

    Args:
        is_coupled: how its drafter chooses drafts. Seeds must tell its requests apart.

    Raises:
        ValueError: it has no block drafter.
    """
    drafter = None if executor.drafter is None else executor.drafter.drafter
    if not isinstance(drafter, BlockDrafter):
        raise ValueError(f"matches are collected of dflash and dspark drafters, got {type(drafter).__name__}")
    target_ids, vocab_size = drafter.model.target_ids, drafter.config.vocab_size
    collector = MatchCollector(target_ids, is_coupled=is_coupled)
    drafter.sampler = _HeardDraftSampler(collector, target_ids, vocab_size, "coupled" if is_coupled else "greedy")
    executor.sampler = _HeardSampler(collector, executor.decoder.config.vocab_size, executor.decoder.device)
    return collector
