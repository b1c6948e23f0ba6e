"""All-pairs designs: every two levels of every two factors meet in at least one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import Any

Row = dict[str, Any]


def pairs_of(row: Mapping[str, Any]) -> set[tuple[str, Any, str, Any]]:
    """The pairs of (factor, level) that a row covers."""
    return {(a, row[a], b, row[b]) for a, b in combinations(sorted(row), 2)}


def pairwise_rows(factors: Mapping[str, Sequence[Any]], seed: int = 0, tries: int = 200) -> list[Row]:
    """A small covering design, found greedily: each row is the best of `tries` random completions of an open pair."""
    random = Random(seed)
    names = sorted(factors)
    open_pairs = {
        (a, left, b, right) for a, b in combinations(names, 2) for left, right in product(factors[a], factors[b])
    }
    rows = []
    while open_pairs:
        a, left, b, right = min(open_pairs, key=repr)
        best: Row = {}
        best_gain = 0
        for _ in range(tries):
            row = {name: random.choice(list(factors[name])) for name in names} | {a: left, b: right}
            gain = len(pairs_of(row) & open_pairs)
            if gain > best_gain:
                best, best_gain = row, gain
        rows.append(best)
        open_pairs -= pairs_of(best)
    return rows
