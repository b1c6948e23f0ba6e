"""The textbook rejection rule: drafts drawn with noise of their own, judged by their distribution (design 5).

Source: Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding (ICML 2023). A draft x of
the distribution q is accepted with probability min(1, P(x) / q(x)), P being the row's processed target distribution;
else the row's token is drawn from max(P - q, 0), normalised. So the token has the law P, and a refused draft is never
drawn again, since P(x) < q(x) there: whoever accepts a draft that equals the row's token needs to know no more.

Whether x is accepted, and what is drawn instead, takes streams of noise that neither the draft nor the target's plain
draw uses (noise.py). A draft without q is judged by the target's plain draw: for a certain draft that is the textbook
rule (it is accepted with probability P(x), and the token has the law P without x else), and for any other it costs
acceptance, never the law, since the plain draw knows nothing of the draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from slipstream.sampling.draw import GumbelDraw
from slipstream.sampling.noise import NoiseStream, stream_key, uniform
from slipstream.scheduler.protocol import DraftDistribution

_CHUNK_ELEMENTS = {"cpu": 1 << 18}
_CHUNK_ELEMENTS_DEFAULT = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class DrawnDistribution(DraftDistribution):
    """q = softmax(logits / T), at the request's temperature T.

    Attributes:
        logits: as the draft was drawn from them, float32 or float64 [V_d]; -inf for tokens that could not be drawn. A
            view of the drafter's batch: nothing is copied.
        target_ids: int64 [V_d], the token of each logit; any other token has q = 0.
    """

    logits: Tensor
    target_ids: Tensor
    temperature: float

    def dense(self, vocab_size: int) -> Tensor:
        """q over target ids, float64 [V]."""
        scaled = (self.logits.to(torch.float64) - self.logits.amax()) / self.temperature
        return self.logits.new_zeros(vocab_size, dtype=torch.float64).scatter_(0, self.target_ids, scaled.softmax(0))


class DistributionCheck:
    """Finds distributions that no row could be judged by, before one of them spoils a batch of rows.

    Args:
        vocab_size: of the target. device: where its rows are.
    """

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._good_ids: Tensor | None = None  # a drafter brings the same ones with every draft: read once

    def fault(self, distribution: DraftDistribution) -> str | None:
        """What is wrong with it; None for one to judge by."""
        if not isinstance(distribution, DrawnDistribution):
            return f"a {type(distribution).__name__}, of which the sampler knows nothing"
        logits, target_ids, temperature = distribution.logits, distribution.target_ids, distribution.temperature
        if not (isinstance(logits, Tensor) and isinstance(target_ids, Tensor)):
            return f"logits and target_ids are {type(logits).__name__} and {type(target_ids).__name__}, not tensors"
        if not logits.is_floating_point() or logits.dim() != 1 or not len(logits) or logits.shape != target_ids.shape:
            return (
                f"logits {logits.dtype} {tuple(logits.shape)} for target_ids {tuple(target_ids.shape)}; "
                "both must be [V_d], the logits floating-point"
            )
        if {logits.device, target_ids.device} != {self._device}:
            return f"logits on {logits.device} and target_ids on {target_ids.device}; the rows are on {self._device}"
        if not isinstance(temperature, int | float) or not 0.0 < temperature < math.inf:
            return f"temperature {temperature!r}; it must be above 0"
        if target_ids is not self._good_ids:
            if target_ids.dtype != torch.int64 or not self._are_tokens(target_ids):
                return f"target_ids {target_ids.dtype} must be int64, each another token id below {self._vocab_size}"
            self._good_ids = target_ids
        return None

    def _are_tokens(self, target_ids: Tensor) -> bool:
        token_ids = set(target_ids.tolist())
        return len(token_ids) == len(target_ids) and min(token_ids) >= 0 and max(token_ids) < self._vocab_size


@dataclass(frozen=True, slots=True, eq=False)
class JudgedRow:
    """A row whose draft is to be judged.

    Attributes:
        logits: processed target logits, -inf for tokens that filters took away, float32 or float64 [V].
        temperature: above 0.
        draft: the token x. distribution: what it was drawn from.
        key: `noise_key` of the row's output position. column: the draft's place in its block, from 0.
    """

    logits: Tensor
    temperature: float
    draft: int
    distribution: DrawnDistribution
    key: int
    column: int


class RejectionRule:
    """Judges rows, in float64. What one gives is a function of the row alone, but for the last bit of a sum."""

    def __init__(self, draw: GumbelDraw, vocab_size: int) -> None:
        self._draw = draw
        self._vocab_size = vocab_size
        elements = _CHUNK_ELEMENTS.get(draw.device.type, _CHUNK_ELEMENTS_DEFAULT)
        self._chunk_rows = max(1, elements // vocab_size)

    def judge(self, rows: Iterable[JudgedRow]) -> list[int]:
        """One token per row: its draft where that is accepted, else one from what the target has more of."""
        token_ids: list[int] = []
        coming = iter(rows)
        while chunk := list(islice(coming, self._chunk_rows)):
            token_ids += self._chunk(chunk)
        return token_ids

    def _chunk(self, rows: Sequence[JudgedRow]) -> list[int]:
        device = self._draw.device
        logits = torch.stack([row.logits.to(torch.float64) for row in rows])
        temperatures = torch.tensor([row.temperature for row in rows], dtype=torch.float64, device=device)[:, None]
        target = ((logits - logits.amax(-1, keepdim=True)) / temperatures).softmax(-1)
        draft = torch.stack([row.distribution.dense(self._vocab_size) for row in rows])
        chosen = torch.tensor([row.draft for row in rows], device=device)[:, None]
        limits = [uniform(stream_key(row.key, NoiseStream.ACCEPTANCE, row.column)) for row in rows]
        needed = torch.tensor(limits, dtype=torch.float64, device=device) * draft.gather(1, chosen)[:, 0]
        accepted = (needed < target.gather(1, chosen)[:, 0]).tolist()
        token_ids = [row.draft for row in rows]
        refused = [i for i, is_accepted in enumerate(accepted) if not is_accepted]
        if refused:
            places = torch.tensor(refused, device=device)
            for i, token_id in zip(refused, self._residual(rows, refused, target[places], draft[places]), strict=True):
                token_ids[i] = token_id
        return token_ids

    def _residual(self, rows: Sequence[JudgedRow], refused: list[int], target: Tensor, draft: Tensor) -> list[int]:
        """Tokens of max(P - q, 0), normalised, for the refused rows' P and q [M, V]."""
        excess = (target - draft).clamp_(min=0.0)
        # P = q up to rounding, and yet refused: P itself is right.
        excess = torch.where(excess.amax(-1, keepdim=True) > 0.0, excess, target)
        logits = excess.log_()
        tops, columns = logits.max(-1)
        keys = [stream_key(rows[i].key, NoiseStream.RESIDUAL, rows[i].column) for i in refused]
        return self._draw.rows(logits, columns.tolist(), tops.tolist(), [1.0] * len(refused), keys)
