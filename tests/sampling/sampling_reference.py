"""The sampler's definition written out plainly, one row and one token at a time, and small helpers for its tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from slipstream.request import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.protocol import SampleRow

MASK = (1 << 64) - 1


def splitmix_rounds(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    return ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK


def reference_gumbel(key: int, token_id: int) -> float:
    hash_ = splitmix_rounds(splitmix_rounds(((token_id + 1) * 0x9E3779B97F4A7C15) & MASK) ^ key)
    signed = hash_ - (1 << 64) if hash_ >> 63 else hash_
    w = (2 * ((signed >> 12) + 2**51) + 1) / 2**53
    return -math.log(-math.log1p(-w))


def make_row(
    sampling: SamplingParams,
    *,
    seed: int = 0,
    choice_index: int = 0,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    drafts: Sequence[int] = (),
    num_drafts: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
) -> SampleRow:
    return SampleRow(
        sampling, seed, choice_index, stop_token_ids, [*prompt, *output], len(prompt), list(drafts), num_drafts
    )


def processed_logits(logits: Sequence[float], row: SampleRow) -> list[float]:
    params = row.sampling
    prefix = row.token_ids + row.draft_token_ids[: row.num_drafts]
    prompt, output = prefix[: row.num_prompt_tokens], prefix[row.num_prompt_tokens :]
    result = []
    for token_id, logit in enumerate(logits):
        value = logit + params.logit_bias.get(token_id, 0.0)
        if token_id in row.stop_token_ids and len(output) < params.min_tokens:
            value = -math.inf
        if token_id in prompt or token_id in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        count = output.count(token_id)
        value -= params.frequency_penalty * count
        value -= params.presence_penalty * (count > 0)
        result.append(value)
    if max(result) == -math.inf:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        result[best] = 0.0
    return result


def processed_distribution(logits: Sequence[float], row: SampleRow) -> list[float]:
    """Exact probabilities of a row with temperature > 0."""
    values = [value / row.sampling.temperature for value in processed_logits(logits, row)]
    params, top = row.sampling, max(values)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    weights = [math.exp(value - top) for value in values]
    if params.min_p > 0:
        order = [i for i in order if weights[i] >= params.min_p * (1 - 1e-9)]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total, reached, count = sum(weights[i] for i in order), 0.0, 0
        while count < len(order) and (count == 0 or reached < (params.top_p - 1e-9) * total):
            reached += weights[order[count]]
            count += 1
        order = order[:count]
    total = sum(weights[i] for i in order)
    kept = set(order)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(values))]


def reference_sample(logits: Sequence[float], row: SampleRow, key: int) -> int:
    """argmax(processed / T + noise) over the kept tokens, lowest id first."""
    values = processed_logits(logits, row)
    ids = range(len(values))
    if row.sampling.temperature == 0:
        return max(ids, key=lambda i: (values[i], -i))
    kept = processed_distribution(logits, row)
    possible = [i for i in ids if kept[i] > 0]
    return max(possible, key=lambda i: (values[i] / row.sampling.temperature + reference_gumbel(key, i), -i))


def law(logits: Sequence[float], sampling: SamplingParams, trials: int, **row: object) -> list[float]:
    """Observed frequencies of one row sampled with seeds 0, 1, ..."""
    vocab_size = len(logits)
    batch = torch.tensor([logits], dtype=torch.float64).expand(trials, vocab_size)
    sampled = Sampler(vocab_size).sample(batch, [make_row(sampling, seed=seed, **row) for seed in range(trials)])
    return (torch.bincount(torch.tensor(sampled.token_ids), minlength=vocab_size) / trials).tolist()


def chi_square_bound(degrees: int) -> float:
    """A chi-square value exceeded about once in 30 000 times (Wilson and Hilferty's approximation, z = 4)."""
    return degrees * (1 - 2 / (9 * degrees) + 4 * math.sqrt(2 / (9 * degrees))) ** 3


def decode(
    target: Callable[[list[int]], list[float]],
    sampling: SamplingParams,
    num_tokens: int,
    *,
    propose: Callable[[list[int]], list[int]] = lambda prefix: [],
    seed: int = 0,
    choice_index: int = 0,
    prompt: Sequence[int] = (0,),
    stop_token_ids: frozenset[int] = frozenset(),
) -> tuple[list[int], int]:
    """Output tokens, and how many drafts were accepted, of a decoding loop that verifies `propose(prefix)` each step.

    `target` gives the logits after a prefix. Stops after a stop token once `min_tokens` allow it.
    """
    tokens, accepted = list(prompt), 0
    sampler = Sampler(len(target(tokens)))
    while True:
        drafts = propose(tokens)
        logits = [target(tokens + drafts[:i]) for i in range(len(drafts) + 1)]
        rows = [
            SampleRow(sampling, seed, choice_index, stop_token_ids, tokens, len(prompt), drafts, i)
            for i in range(len(drafts) + 1)
        ]
        sampled = sampler.sample(torch.tensor(logits, dtype=torch.float64), rows).token_ids
        step = []
        for draft, token_id in zip([*drafts, None], sampled, strict=True):
            step.append(token_id)
            if draft != token_id:
                break
            accepted += 1
        for token_id in step:
            tokens.append(token_id)
            num_output = len(tokens) - len(prompt)
            stopped = token_id in stop_token_ids and num_output > sampling.min_tokens
            if stopped or num_output == num_tokens:
                return tokens[len(prompt) :], accepted
