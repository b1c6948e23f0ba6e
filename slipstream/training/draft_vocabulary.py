"""Which tokens a drafter can propose: the ones that the target writes most often."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slipstream.training.corpus import Dialogue


def token_counts(dialogues: Iterable[Dialogue], vocab_size: int, *, of_answers: bool) -> NDArray[np.int64]:
    """How often each token stands in answers, or in all that is not an answer, [vocab_size]."""
    counts = np.zeros(vocab_size, np.int64)
    for dialogue in dialogues:
        chosen = dialogue.is_answer if of_answers else ~dialogue.is_answer
        counts += np.bincount(dialogue.token_ids[chosen], minlength=vocab_size)
    return counts


def most_frequent(answers: NDArray[np.int64], prompts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Target ids of `size` tokens, ascending: the most frequent in answers, of equal ones the more frequent in
    prompts (an answer takes up its prompt's words), then the lower id, which byte-pair tokenizers gave out earlier and
    so to the more common text."""
    order = np.lexsort((np.arange(len(answers)), -prompts, -answers))
    return np.sort(order[:size])


def coverage(counts: NDArray[np.int64], token_ids: NDArray[np.int64]) -> float:
    """Share of the counted tokens that lie in a vocabulary."""
    return float(counts[token_ids].sum() / max(counts.sum(), 1))
