"""`num_speculative_tokens_per_batch_size`: K by the number of running requests, checked entry by entry."""

from __future__ import annotations

from typing import Any

from slipstream.config.settings import DraftSchedule, SettingError
from slipstream.request import shown

NAME = "--speculative-config: num_speculative_tokens_per_batch_size"


def check_draft_schedule(value: Any, most: int) -> DraftSchedule:
    """The schedule as tuples; loads above its last range keep that one's K.

    Args:
        value: a list of [lowest, highest, K], as JSON gives it.
        most: num_speculative_tokens.

    Raises:
        SettingError: naming the entry that is malformed, out of order, overlapping, preceded by a gap, or above `most`.
    """
    if not isinstance(value, list | tuple) or not value:
        raise SettingError(f"{NAME} must be a list of [lowest, highest, K], got {shown(value)}")
    ranges: list[tuple[int, int, int]] = []
    for place, entry in enumerate(value):
        where = f"{NAME}: entry {place + 1}, {shown(entry)},"
        is_triple = isinstance(entry, list | tuple) and len(entry) == 3
        if not is_triple or any(isinstance(n, bool) or not isinstance(n, int) for n in entry):
            raise SettingError(f"{where} must be three whole numbers [lowest, highest, K]")
        low, high, count = entry
        first = ranges[-1][1] + 1 if ranges else 1
        if low > high:
            raise SettingError(f"{where} falls from {low} to {high}; ranges rise, write [{high}, {low}, {count}]")
        if low < first:
            reason = f"begins before the entry ahead of it ends, at {first - 1}" if ranges else "begins below 1 request"
            raise SettingError(f"{where} {reason}; let it begin at {first}")
        if low > first:
            raise SettingError(f"{where} leaves {first} to {low - 1} requests without a K; let it begin at {first}")
        if not 0 <= count <= most:
            nearest = most if count > most else 0
            raise SettingError(
                f"{where} must have a K between 0 and num_speculative_tokens = {most}; the nearest is {nearest}"
            )
        ranges.append((low, high, count))
    return tuple(ranges)
