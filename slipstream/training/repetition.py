"""Loops: where a model repeats itself, and how much of a text is repetition.

Small models answered greedily often end in a loop. Drafts for a loop are easy, so a drafter trained or judged on loops
looks good and is not; loops are therefore cut off before anything is trained or measured.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 128
MIN_COPIES = 3
MIN_LOOP_TOKENS = 24
GRAM = 4
MAX_REPEATED_SHARE = 0.5


def loop_start(token_ids: NDArray[np.int32]) -> int | None:
    """Where the second copy of a loop begins: the first place from which the text repeats what stands `period` tokens
    before, for at least MIN_COPIES - 1 more copies and MIN_LOOP_TOKENS tokens. None without a loop.

    What stands before is the text with one copy of what is repeated.
    """
    found: int | None = None
    for period in range(1, min(MAX_PERIOD, len(token_ids) // 2) + 1):
        same = token_ids[period:] == token_ids[:-period]
        start = _first_run(same, max(period * (MIN_COPIES - 1), MIN_LOOP_TOKENS))
        if start is not None and (found is None or start + period < found):
            found = start + period
    return found


def repeated_share(token_ids: NDArray[np.int32]) -> float:
    """Share of the runs of GRAM tokens that stand in the text more than once, their first time not counted: 0 for a
    text without repetition, near 1 for a loop."""
    if len(token_ids) <= GRAM:
        return 0.0
    grams = np.lib.stride_tricks.sliding_window_view(token_ids, GRAM)
    return 1.0 - len(np.unique(grams, axis=0)) / len(grams)


def _first_run(same: NDArray[np.bool_], length: int) -> int | None:
    """Start of the first run of at least `length` true values."""
    if len(same) < length:
        return None
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
    starts, ends = edges[::2], edges[1::2]
    long = np.flatnonzero(ends - starts >= length)
    return int(starts[long[0]]) if len(long) else None
