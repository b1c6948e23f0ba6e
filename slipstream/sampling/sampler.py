"""The sampler: one token per logits row, a pure function of the row, its prefix, parameters and seed (design 5)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slipstream.request import Logprobs
from slipstream.sampling.constraint import constrained
from slipstream.sampling.draw import GumbelDraw
from slipstream.sampling.filters import has_filters, kept_tokens
from slipstream.sampling.logprobs import row_logprobs
from slipstream.sampling.noise import noise_key
from slipstream.sampling.processing import PrefixCounts, check_sampling, needs_processing, process
from slipstream.sampling.protocol import RowSampler
from slipstream.sampling.rejection import DrawnDistribution, JudgedRow, RejectionRule
from slipstream.scheduler.protocol import ConstraintError, SampledTokens, SampleRow

__all__ = ["NO_LOGITS", "LogitsError", "Sampler", "check_sampling"]

_ARGMAX_BLOCK = 256


NO_LOGITS = "the model gave no usable logits for this text (only NaN or -inf); its weights may be damaged"


class LogitsError(RuntimeError):
    """Rows that cannot be sampled: the model gave only NaN and -inf, or no token fits a constraint.

    Sampling keeps no state, so the other rows can be sampled again without these.

    Attributes:
        reasons: batch index -> what is wrong, for the request's user. rows: the indices, ascending.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        self.rows = sorted(reasons)
        self.reasons = dict(reasons)
        super().__init__(f"batch rows {self.rows} cannot be sampled: {self.reasons[self.rows[0]]}")


@dataclass(slots=True)
class _Batch:
    """A batch being sampled.

    Attributes:
        token_ids: of the row maxima, which samples replace. tops: the maxima.
        are_drawn: rows with a temperature and nothing else have their samples already; then `tops` only says which rows
            are finite.
        cleaned: rows [V] in place of those that held NaN or an infinite maximum.
        constrained: of constrained rows, the row [V] in which only what fits is possible; it is sampled from, while
            log probabilities are those of the model's own row.
    """

    logits: Tensor
    rows: Sequence[SampleRow]
    token_ids: list[int]
    tops: list[float]
    are_drawn: bool
    cleaned: dict[int, Tensor] = field(default_factory=dict)
    constrained: dict[int, Tensor] = field(default_factory=dict)

    def row_logits(self, index: int) -> Tensor:
        """Row `index` as float32, or float64 where that was given."""
        if index in self.cleaned:
            return self.cleaned[index]
        row = self.logits[index]
        return row if row.dtype == torch.float64 else row.to(torch.float32)

    def sampled_logits(self, index: int) -> Tensor:
        """Row `index` as it is sampled from."""
        return self.constrained[index] if index in self.constrained else self.row_logits(index)


class Sampler:
    """Samples rows of logits over one vocabulary.

    A row's token is argmax(processed logits / T + Gumbel noise), the lowest id among equals, argmax(processed logits)
    at T = 0. The noise is a hash of (seed, choice index, output position, token id). Order: constraint, allowed tokens
    and bad words, logit_bias, min_tokens, repetition, frequency and presence penalties, temperature, min_p, top_k,
    top_p. float64 logits stay float64, all others are processed as float32.

    A row at T > 0 whose draft brings its distribution is judged by the textbook rejection rule instead (rejection.py),
    against the same processed logits: its token is the draft, or another one.

    Args:
        row_sampler: for rows of float32 that are greedy or have a temperature and nothing else; their tokens are the
            same without it.
    """

    def __init__(
        self, vocab_size: int, device: torch.device | str = "cpu", row_sampler: RowSampler | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self._row_sampler = row_sampler
        self._draw = GumbelDraw(vocab_size, device)
        self._rejection = RejectionRule(self._draw, vocab_size)

    def sample(self, logits: Tensor, rows: Sequence[SampleRow]) -> SampledTokens:
        """Sample row i of `logits` [N, V] (any float dtype; not changed) as `rows[i]` says.

        Raises:
            LogitsError: rows whose logits are all NaN or -inf, or whose constraint allows nothing; none is sampled.
            RequestError: a `logit_bias` id outside the vocabulary; call `check_sampling` on arrival.
        """
        if logits.shape != (len(rows), self.vocab_size):
            raise ValueError(f"logits must have shape {(len(rows), self.vocab_size)}, got {tuple(logits.shape)}")
        if not rows:
            return SampledTokens([], [])
        batch = self._begin(logits, rows)
        unusable = self._clean(batch)
        unusable |= self._constrain(batch, unusable)
        if unusable:
            raise LogitsError(unusable)

        plain: list[int] = []
        judged: list[int] = []
        counts = PrefixCounts()
        for index, row in enumerate(rows):
            greedy = row.sampling.is_greedy
            if row.draft_distribution is not None and not greedy:
                judged.append(index)
            elif (
                index in batch.cleaned
                or index in batch.constrained
                or needs_processing(row)
                or (not greedy and has_filters(row.sampling))
            ):
                batch.token_ids[index] = self._sample_one(batch.sampled_logits(index), row, counts)
            elif not greedy and not batch.are_drawn:
                plain.append(index)
        if plain:
            self._sample_plain(batch, plain)
        if judged:
            to_judge = (_judged(batch.sampled_logits(index), rows[index], counts) for index in judged)
            for index, token_id in zip(judged, self._rejection.judge(to_judge), strict=True):
                batch.token_ids[index] = token_id
        return SampledTokens(batch.token_ids, self._logprobs(batch))

    def _begin(self, logits: Tensor, rows: Sequence[SampleRow]) -> _Batch:
        if self._row_sampler is None or logits.dtype != torch.float32 or logits.stride(-1) != 1:
            best_ids, best_values = first_argmax(logits)
            return _Batch(logits, rows, best_ids.tolist(), best_values.tolist(), are_drawn=False)
        temperatures = [row.sampling.temperature if _is_plain(row) else 0.0 for row in rows]
        keys = [_key(row) if temperature else 0 for row, temperature in zip(rows, temperatures, strict=True)]
        token_ids = self._row_sampler.sample(logits, temperatures, keys)
        tops = [math.nan if token_id < 0 else 0.0 for token_id in token_ids]
        return _Batch(logits, rows, token_ids, tops, are_drawn=True)

    def _clean(self, batch: _Batch) -> dict[int, str]:
        """NaN becomes -inf; where +inf stands, only +inf tokens stay possible. Gives the rows without any, and why."""
        unusable: dict[int, str] = {}
        for index, top in enumerate(batch.tops):
            if math.isfinite(top):
                continue
            row = batch.row_logits(index)
            row = torch.where(row.isnan(), -math.inf, row)
            top = float(row.amax())
            if top == math.inf:
                row = torch.where(row == math.inf, 0.0, -math.inf).to(row.dtype)
            elif top == -math.inf:
                unusable[index] = NO_LOGITS
            batch.cleaned[index] = row
        return unusable

    def _constrain(self, batch: _Batch, without: Collection[int]) -> dict[int, str]:
        """Leave only what fits in rows with a constraint, but for rows `without` logits. Gives the rows where nothing
        does, and why."""
        unusable: dict[int, str] = {}
        for index, row in enumerate(batch.rows):
            if row.matcher is None or index in without:
                continue
            try:
                allowed = row.matcher.allowed(row.output_token_ids)
                if allowed is not None:
                    batch.constrained[index] = constrained(batch.row_logits(index), allowed)
            except ConstraintError as error:
                unusable[index] = str(error)
        return unusable

    def _sample_plain(self, batch: _Batch, indices: list[int]) -> None:
        """Rows with a temperature and nothing else, together."""
        rows = [batch.rows[i] for i in indices]
        whole = len(indices) == len(batch.rows)
        logits = batch.logits if whole else batch.logits[torch.tensor(indices, device=batch.logits.device)]
        tokens = self._draw.rows(
            logits,
            [batch.token_ids[i] for i in indices],
            [batch.tops[i] for i in indices],
            [row.sampling.temperature for row in rows],
            [_key(row) for row in rows],
        )
        for index, token_id in zip(indices, tokens, strict=True):
            batch.token_ids[index] = token_id

    def _sample_one(self, logits: Tensor, row: SampleRow, counts: PrefixCounts) -> int:
        """A row [V] with processing or filters, by itself."""
        logits = process(logits, row, counts)
        best_ids, best_values = first_argmax(logits[None])
        best_id, top, temperature = int(best_ids), float(best_values), row.sampling.temperature
        if row.sampling.is_greedy:
            return best_id
        if not has_filters(row.sampling):
            return self._draw.rows(logits[None], [best_id], [top], [temperature], [_key(row)])[0]
        kept = kept_tokens((logits.to(torch.float64) - top) / temperature, row.sampling)
        return self._draw.among(logits[kept], kept, top, temperature, _key(row))

    def _logprobs(self, batch: _Batch) -> list[Logprobs | None]:
        return [
            None
            if row.sampling.logprobs is None
            else row_logprobs(batch.row_logits(index), batch.token_ids[index], row.sampling.logprobs)
            for index, row in enumerate(batch.rows)
        ]


def _is_plain(row: SampleRow) -> bool:
    """Whether all that its sampling needs is its temperature, or nothing."""
    return row.draft_distribution is None and not needs_processing(row) and not has_filters(row.sampling)


def _key(row: SampleRow) -> int:
    return noise_key(row.seed, row.choice_index, row.output_position)


def _judged(logits: Tensor, row: SampleRow, counts: PrefixCounts) -> JudgedRow:
    """A row [V] with its draft, processed and filtered as if it were sampled."""
    distribution = row.draft_distribution
    if not isinstance(distribution, DrawnDistribution):
        raise TypeError(f"a draft was drawn from {distribution!r}, of which this sampler knows nothing")
    logits = process(logits, row, counts)
    if has_filters(row.sampling):
        kept = kept_tokens((logits.to(torch.float64) - logits.amax()) / row.sampling.temperature, row.sampling)
        logits = torch.full_like(logits, -math.inf).index_copy_(0, kept, logits[kept])
    draft = row.draft_token_ids[row.num_drafts]
    return JudgedRow(logits, row.sampling.temperature, draft, distribution, _key(row), row.num_drafts)


def first_argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and values of the row maxima of `logits` [N, V], the first among equals; a NaN counts as the largest.

    Maxima of blocks first: PyTorch's `amax` uses vector units on a CPU, its `argmax` does not.
    """
    num_rows, vocab_size = logits.shape
    body = vocab_size - vocab_size % _ARGMAX_BLOCK
    maxima = logits[:, :body].reshape(num_rows, -1, _ARGMAX_BLOCK).amax(-1) if body else logits.new_empty(num_rows, 0)
    if body < vocab_size:
        maxima = torch.cat([maxima, logits[:, body:].amax(-1, keepdim=True)], dim=1)
    start = maxima.argmax(-1, keepdim=True) * _ARGMAX_BLOCK
    offsets = torch.arange(_ARGMAX_BLOCK, device=logits.device)
    positions = (start + offsets).clamp_(max=vocab_size - 1)
    values = logits.gather(1, positions)
    inside = values.argmax(-1, keepdim=True)
    return positions.gather(1, inside)[:, 0], values.gather(1, inside)[:, 0]
