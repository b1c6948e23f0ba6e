"""Which tokens a drafter can propose: the ones that the target writes most often."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slipstream.training.corpus import Dialogue


def answer_counts(dialogues: Iterable[Dialogue], vocab_size: int) -> NDArray[np.int64]:
    """How often each token stands in an answer, [vocab_size]."""
    counts = np.zeros(vocab_size, np.int64)
    for dialogue in dialogues:
        counts += np.bincount(dialogue.token_ids[dialogue.is_answer], minlength=vocab_size)
    return counts


def most_frequent(counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Target ids of the `size` most frequent tokens, ascending; ties go to the lower id, which byte-pair tokenizers
    gave out earlier and so to the more common text."""
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[:size])


def coverage(counts: NDArray[np.int64], token_ids: NDArray[np.int64]) -> float:
    """Share of the counted tokens that lie in a vocabulary."""
    return float(counts[token_ids].sum() / max(counts.sum(), 1))
