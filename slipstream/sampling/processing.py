"""Changes to a row's logits before temperature: allowed tokens, bad words, logit_bias, min_tokens, penalties.

Everything is a function of the row's prefix, `token_ids + draft_token_ids[:num_drafts]`, so that a refused draft
leaves nothing behind (design 5).
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from slipstream.request import RequestError, SamplingParams
from slipstream.scheduler.protocol import SampleRow


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary in `logit_bias`, `stop_token_ids` and `allowed_token_ids`.

    Raises:
        RequestError: names the parameter, the id and the ids that exist.
    """
    for parameter, token_ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                nearest = 0 if token_id < 0 else vocab_size - 1
                raise RequestError(
                    f"{parameter} names token id {token_id}, but this model's ids are 0 to {vocab_size - 1}; "
                    f"the nearest is {nearest}",
                    parameter,
                )


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def forbids_stops(row: SampleRow) -> bool:
    """Whether `min_tokens` still forbids EOS and stop ids at this row's output position."""
    return bool(row.stop_token_ids) and row.output_position < row.sampling.min_tokens


def has_restrictions(params: SamplingParams) -> bool:
    """Whether some tokens are forbidden whatever their logits."""
    return params.allowed_token_ids is not None or bool(params.bad_words_token_ids)


def needs_processing(row: SampleRow) -> bool:
    params = row.sampling
    return (
        bool(params.logit_bias)
        or forbids_stops(row)
        or has_penalties(params)
        or has_restrictions(params)
        or params.thinking is not None
    )


class PrefixCounts:
    """How often tokens occur in prefixes; what the verify rows of a request share is counted once.

    Lives for one batch of rows, during which the rows keep their lists alive, so `id` names a list.
    """

    def __init__(self) -> None:
        self._committed: dict[tuple[int, int], tuple[frozenset[int], Counter[int]]] = {}

    def of(self, row: SampleRow) -> tuple[frozenset[int], Counter[int]]:
        """Token ids of the prompt, and occurrences in the output including the drafts before this row."""
        key = (id(row.token_ids), row.num_prompt_tokens)
        if key not in self._committed:
            prompt = frozenset(row.token_ids[: row.num_prompt_tokens])
            self._committed[key] = (prompt, Counter(row.token_ids[row.num_prompt_tokens :]))
        prompt, output = self._committed[key]
        if row.num_drafts:
            output = output + Counter(row.draft_token_ids[: row.num_drafts])
        return prompt, output


def process(logits: Tensor, row: SampleRow, counts: PrefixCounts) -> Tensor:
    """The row's logits [V] (float32 or float64) after all of it; a new tensor if any applies.

    If every token is forbidden, the best given one is the only one allowed, so no constraint is broken by it.

    Raises:
        RequestError: a `logit_bias` id outside the vocabulary (see `check_sampling`).
    """
    if not needs_processing(row):
        return logits
    params, vocab_size = row.sampling, logits.shape[0]
    if params.thinking is not None:
        forced = params.thinking.forced_token(row.output_token_ids)
        if forced is not None:
            logits = torch.full_like(logits, -math.inf)
            logits[forced] = 0.0
            return logits
    original = logits
    if has_restrictions(params):
        logits = _restricted(logits, row)
        if not bool(torch.isneginf(logits.amax())):
            original = logits
    logits = logits.clone()
    if params.logit_bias:
        check_sampling(params, vocab_size)
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(params.logit_bias.values()), dtype=logits.dtype, device=logits.device)
    if forbids_stops(row):
        logits[_ids_in_vocabulary(row.stop_token_ids, logits)] = -math.inf
    if has_penalties(params):
        _penalise(logits, params, *counts.of(row))
    # Bias and penalties may leave the range of the type: such a token is the best one or forbidden, never NaN.
    limit = torch.finfo(logits.dtype).max / 4  # the difference of two logits must stay finite too
    torch.nan_to_num_(logits, nan=-math.inf, posinf=limit, neginf=-math.inf).clamp_(max=limit)
    if bool(torch.isneginf(logits.amax())):
        logits[original.argmax()] = 0.0
    return logits


def _restricted(logits: Tensor, row: SampleRow) -> Tensor:
    """Without tokens that are not allowed, and those that would complete a bad word; a new tensor."""
    params = row.sampling
    if params.allowed_token_ids is None:
        kept = logits.clone()
    else:
        ids = _ids_in_vocabulary(frozenset(params.allowed_token_ids), logits)
        kept = torch.full_like(logits, -math.inf)
        kept[ids] = logits[ids]
    if params.bad_words_token_ids:
        output = tuple(row.output_token_ids)
        last = {word[-1] for word in params.bad_words_token_ids if output[len(output) - len(word) + 1 :] == word[:-1]}
        kept[_ids_in_vocabulary(frozenset(last), logits)] = -math.inf
    return kept


def _penalise(logits: Tensor, params: SamplingParams, prompt: frozenset[int], output: Counter[int]) -> None:
    """Repetition (prompt and output), then frequency, then presence (output only), in place."""
    if params.repetition_penalty != 1.0:
        ids = _ids_in_vocabulary(prompt.union(output), logits)
        values = logits[ids]
        penalty = params.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        ids = _ids_in_vocabulary(output, logits)
        occurrences = torch.tensor([output[i] for i in ids.tolist()], dtype=logits.dtype, device=logits.device)
        values = logits[ids] - params.frequency_penalty * occurrences
        logits[ids] = values - params.presence_penalty


def _ids_in_vocabulary(token_ids: frozenset[int] | Counter[int], logits: Tensor) -> Tensor:
    """Ids that have a logit, ascending; a tokenizer may know more ids than the model."""
    ids = sorted(token_id for token_id in token_ids if 0 <= token_id < logits.shape[0])
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)
