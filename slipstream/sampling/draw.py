"""Gumbel-max draws: argmax over tokens of (logit - top) / T + Gumbel noise, lowest id first among equals.

The winner is decided by float64 scalars on the host. Tensors only narrow the tokens down to those that may win, with
margins far above any rounding error. So vector units, whose logarithms may differ in the last bit between the lanes
and the tail of a tensor or between devices, never decide: a row's draw depends on the row alone.

With E = -log(u), the noise is -log(E) and the argmax is that of p / E, p = exp((logit - top) / T), where the top
token's p is 1. A token beats the top token only if E < p E_top, and E > w = 1 - u, which needs no logarithm: that
test leaves about E_top / P(top token) tokens of a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slipstream.sampling.noise import (
    exponential,
    hash_token,
    hash_tokens,
    key_tensor,
    survival_float32_scaled,
    survival_float64,
    token_constants,
)

_MARGIN = 1e-4  # relative; float32 errors of p stay below 1e-5 wherever p could win (p > 1e-17)
_SLACK = 2.0**-22  # absolute, on w; its float32 error is below 2**-24
_MIN_TEMPERATURE = 1e-30  # for the narrowing only, where a higher temperature just keeps more tokens
_CHUNK_ELEMENTS = {"cpu": 1 << 18}  # small enough for caches
_CHUNK_ELEMENTS_DEFAULT = 1 << 22


class GumbelDraw:
    """Draws tokens of one vocabulary on one device.

    Args:
        token_ids: int64 [V], the token that each column of the logits stands for, where a column is not its own token
            (a drafter's reduced vocabulary). The noise belongs to the token, so it is the one that the whole
            vocabulary's draw has; then `vocab_size` must be above all of them, and the columns number V.
    """

    def __init__(self, vocab_size: int, device: torch.device | str, token_ids: Tensor | None = None) -> None:
        self.device = torch.device(device)
        self.constants = token_constants(vocab_size, self.device)
        self._token_ids = None if token_ids is None else token_ids.to(self.device)
        self._token_list = None if token_ids is None else token_ids.tolist()
        if self._token_ids is not None:
            self.constants = self.constants[self._token_ids]
            vocab_size = len(self.constants)
        elements = _CHUNK_ELEMENTS.get(self.device.type, _CHUNK_ELEMENTS_DEFAULT)
        self._chunk_rows = max(1, elements // vocab_size)

    def rows(
        self, logits: Tensor, top_columns: list[int], tops: list[float], temperatures: list[float], keys: list[int]
    ) -> list[int]:
        """One token id per row of `logits` [N, V], whose maxima `tops`, at `top_columns`, are finite.

        Temperatures are above 0.
        """
        token_ids: list[int] = []
        for start in range(0, len(keys), self._chunk_rows):
            part = slice(start, start + self._chunk_rows)
            token_ids += self._chunk(logits[part], top_columns[part], tops[part], temperatures[part], keys[part])
        return token_ids

    def among(self, values: Tensor, columns: Tensor, top: float, temperature: float, key: int) -> int:
        """The token drawn among `columns` [M], with logits `values` [M] and maximum `top`."""
        hashes = hash_tokens(self.constants[columns], key_tensor([key], self.device))
        owners = torch.zeros_like(columns)
        return _decide(values, hashes, owners, self._tokens_of(columns), [top], [temperature], [key])[0]

    def _tokens_of(self, columns: Tensor) -> Tensor:
        return columns if self._token_ids is None else self._token_ids[columns]

    def _chunk(
        self, logits: Tensor, top_columns: list[int], tops: list[float], temperatures: list[float], keys: list[int]
    ) -> list[int]:
        top_ids = top_columns if self._token_list is None else [self._token_list[column] for column in top_columns]
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        hashes = hash_tokens(self.constants, key_tensor(keys, self.device)[:, None])
        limits = [exponential(hash_token(*pair)) * (1.0 + _MARGIN) for pair in zip(keys, top_ids, strict=True)]
        softened = [max(temperature, _MIN_TEMPERATURE) for temperature in temperatures]
        weights = logits - torch.tensor(tops, dtype=dtype, device=self.device)[:, None]
        weights /= torch.tensor(softened, dtype=dtype, device=self.device)[:, None]
        weights = weights.to(torch.float32).exp_()
        # w <= p E_top + slack, on the scale of the hashes: 2**64 (w - 0.5).
        weights *= torch.tensor(limits, dtype=torch.float32, device=self.device)[:, None] * 2.0**64
        weights += (_SLACK - 0.5) * 2.0**64
        owners, columns = torch.nonzero(survival_float32_scaled(hashes) <= weights, as_tuple=True)
        values = logits[owners, columns]
        return _decide(values, hashes[owners, columns], owners, self._tokens_of(columns), tops, temperatures, keys)


def _decide(
    values: Tensor,
    hashes: Tensor,
    owners: Tensor,
    candidate_ids: Tensor,
    tops: list[float],
    temperatures: list[float],
    keys: list[int],
) -> list[int]:
    """The winner of each row among candidates given flat [M]: their logits, hashes, rows (`owners`) and token ids.

    Every row has its top token among the candidates.
    """
    device = values.device
    shift = torch.tensor(tops, dtype=torch.float64, device=device)[owners]
    divisor = torch.tensor(temperatures, dtype=torch.float64, device=device)[owners]
    ratios = ((values.to(torch.float64) - shift) / divisor).exp_() / -torch.log1p(-survival_float64(hashes))
    best = torch.zeros(len(keys), dtype=torch.float64, device=device)
    best.scatter_reduce_(0, owners, ratios, "amax")
    near = torch.nonzero(ratios >= best[owners] * (1.0 - _MARGIN))[:, 0]
    rows, ids, logits = owners[near].tolist(), candidate_ids[near].tolist(), values[near].tolist()

    winners: list[tuple[float, int] | None] = [None] * len(keys)
    for row, token_id, logit in zip(rows, ids, logits, strict=True):
        noise = -math.log(exponential(hash_token(keys[row], token_id)))
        entry = ((logit - tops[row]) / temperatures[row] + noise, -token_id)
        current = winners[row]
        if current is None or entry > current:
            winners[row] = entry
    return [-winner[1] for winner in winners if winner is not None]
