"""The textbook rejection rule written out, one row and one token at a time; and speculative decoding of Markov chains,
many seeds side by side, for tests of the law of what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from sampling.sampling_reference import MASK, processed_distribution, reference_gumbel, splitmix_rounds

from slipstream.request import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.protocol import DraftRequest, SampleRow
from slipstream.speculation.draft_sampling import DraftSampler

ACCEPTANCE, RESIDUAL = 2, 3


def reference_stream(key: int, stream: int, column: int) -> int:
    for word in (stream, column):
        value = splitmix_rounds(((key ^ word) + 0x9E3779B97F4A7C15) & MASK)
        key = value ^ (value >> 31)
    return key


def reference_uniform(key: int) -> float:
    """u, where the noise of token 0 under this key is -log(-log(u))."""
    return math.exp(-math.exp(-reference_gumbel(key, 0)))


def reference_judge(target: Sequence[float], draft: Sequence[float], x: int, key: int, column: int) -> int:
    """What the row gives, for the distributions P and q and the draft x."""
    if reference_uniform(reference_stream(key, ACCEPTANCE, column)) * draft[x] < target[x]:
        return x
    excess = [max(p - q, 0.0) for p, q in zip(target, draft, strict=True)]
    possible = [i for i, mass in enumerate(excess) if mass > 0]
    residual_key = reference_stream(key, RESIDUAL, column)
    return max(possible, key=lambda i: (math.log(excess[i]) + reference_gumbel(residual_key, i), -i))


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


Law = dict[tuple[int, ...], float]
"""The chance of each sequence of tokens."""


@dataclass
class Chains:
    """What came out: output tokens per seed, and how often drafts were judged and accepted, by column."""

    token_ids: list[list[int]]
    judged: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    @property
    def acceptance(self) -> float:
        return sum(self.accepted) / sum(self.judged)


def speculate(
    target: torch.Tensor,
    draft: torch.Tensor,
    sampling: SamplingParams,
    num_seeds: int,
    *,
    num_tokens: int = 1,
    num_drafts: int = 1,
    method: str = "probabilistic",
    target_ids: Sequence[int] | None = None,
    loses_q: bool = False,
) -> Chains:
    """Decode with drafts until everybody has `num_tokens`, as the engine does: rounds of drafts, judged row by row.

    Args:
        target: logits of the next token after each token, [V, V]. draft: the drafter's, [V, V_d].
        loses_q: what the drafts were drawn from does not reach the sampler.

    The prompt is token 0; seeds count from 0.
    """
    vocab_size = target.shape[1]
    sampler = Sampler(vocab_size)
    ids = range(vocab_size) if target_ids is None else target_ids
    drafter = DraftSampler(torch.tensor(list(ids)), vocab_size, method)
    texts = [[0] for _ in range(num_seeds)]
    chains = Chains(texts, [0] * num_drafts, [0] * num_drafts)
    while going := [i for i, text in enumerate(texts) if len(text) <= num_tokens]:
        requests = [DraftRequest(f"r{i}", texts[i], num_drafts, 1, sampling, i, 0) for i in going]
        chooser = drafter.chooser(requests)
        blocks = [torch.tensor([texts[i][-1] for i in going])]
        for k in range(num_drafts):
            blocks.append(chooser(k, draft[blocks[-1]]))
        inputs = torch.stack(blocks, dim=1)  # anchor and drafts, [R, K + 1]
        drafts = inputs[:, 1:].tolist()
        rows = []
        for r, i in enumerate(going):
            drawn_from = () if loses_q else chooser.distributions(r)
            for k in range(num_drafts + 1):
                distribution = drawn_from[k] if k < len(drawn_from) else None
                rows.append(SampleRow(sampling, i, 0, frozenset(), texts[i], 1, drafts[r], k, distribution))
        sampled = sampler.sample(target[inputs.flatten()], rows).token_ids
        for r, i in enumerate(going):
            mine = sampled[r * (num_drafts + 1) : (r + 1) * (num_drafts + 1)]
            count = 0
            while count < num_drafts and mine[count] == drafts[r][count]:
                chains.judged[count] += 1
                chains.accepted[count] += 1
                count += 1
            if count < num_drafts:
                chains.judged[count] += 1
            texts[i] += mine[: count + 1]
    chains.token_ids = [text[1 : 1 + num_tokens] for text in texts]
    return chains


def chain_law(target: torch.Tensor, sampling: SamplingParams, num_tokens: int) -> Law:
    """Exact chance of every output of so many tokens after token 0; chances of 0 left out."""
    law: Law = {(): 1.0}
    for _ in range(num_tokens):
        longer = {}
        for prefix, chance in law.items():
            text = [0, *prefix]
            row = SampleRow(sampling, 0, 0, frozenset(), text, 1, [], 0)
            for token, p in enumerate(processed_distribution(target[text[-1]].tolist(), row)):
                if p > 0:
                    longer[*prefix, token] = chance * p
        law = longer
    return law


def part_of(law: Law, start: int, length: int) -> Law:
    """The law of `length` tokens from `start` on."""
    part: Law = {}
    for text, chance in law.items():
        cell = text[start : start + length]
        part[cell] = part.get(cell, 0.0) + chance
    return part


def chi_square(observed: Sequence[tuple[int, ...]], law: Law, least: float = 5.0) -> tuple[float, int]:
    """The statistic and its degrees of freedom; cells expected less than `least` times are put together.

    Fails on what has no chance at all."""
    counts: dict[tuple[int, ...], int] = {}
    for outcome in observed:
        assert outcome in law, f"{outcome} is impossible"
        counts[outcome] = counts.get(outcome, 0) + 1
    cells, rest = [], [0.0, 0.0]
    for outcome, chance in law.items():
        expected = chance * len(observed)
        if expected >= least:
            cells.append((counts.get(outcome, 0), expected))
        else:
            rest[0] += counts.get(outcome, 0)
            rest[1] += expected
    if rest[1] >= least:
        cells.append((rest[0], rest[1]))
    return sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1
