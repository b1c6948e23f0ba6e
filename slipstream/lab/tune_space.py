"""The settings that `slipstream tune` varies, and the values it tries for each."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.config import COMPOSITIONS, MAX_SPECULATIVE_TOKENS, VERIFICATIONS, SettingError, shown
from slipstream.lab.toml_section import unknown_name

_SPAN = 8
"""Budgets are tried from an eighth of what is set to eight times as much; sequence counts to four times, and no further
than requests are ever there together."""
_MORE_SEATS = 4
MAX_VALUES = 64


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """The settings that are varied. Without drafts or without costs to weigh, rules that play no part are the plain
    ones (`fixed`, `mix`), so that equal candidates are equal runs."""

    num_speculative_tokens: int
    max_num_batched_tokens: int
    max_num_seqs: int
    composition: str
    verification: str

    @property
    def weighs_costs(self) -> bool:
        """Whether a rule needs to know what steps cost."""
        return self.composition != "mix" or self.verification != "fixed"

    def plain(self) -> Candidate:
        """With the verification rule that its drafts leave a choice of."""
        return self if self.num_speculative_tokens else dataclasses.replace(self, verification="fixed")


NAMES = tuple(field.name for field in dataclasses.fields(Candidate))
_CHOICES = {"composition": COMPOSITIONS, "verification": VERIFICATIONS}
_LOWEST = {"num_speculative_tokens": 0, "max_num_batched_tokens": 1, "max_num_seqs": 1}


@dataclass(frozen=True, slots=True)
class Space:
    """Setting -> the values that are tried, numbers rising."""

    values: Mapping[str, tuple[Any, ...]]

    @property
    def size(self) -> int:
        """Combinations, those that cannot work or run alike included."""
        return math.prod(len(values) for values in self.values.values())

    def candidate(self, places: Mapping[str, int]) -> Candidate:
        """From the place of each value in its list."""
        return Candidate(**{name: self.values[name][places[name]] for name in NAMES}).plain()

    def places(self, candidate: Candidate) -> dict[str, int] | None:
        """The other way round; None for a candidate outside."""
        places = {}
        for name in NAMES:
            value = getattr(candidate, name)
            if value not in self.values[name]:
                return None
            places[name] = self.values[name].index(value)
        return places

    def all(self) -> Iterator[Candidate]:
        """Every one, some perhaps twice."""
        for values in itertools.product(*(self.values[name] for name in NAMES)):
            yield Candidate(*values).plain()

    def neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        """One setting changed: numbers by a place, rules to any other; then both budgets together."""
        places = self.places(candidate)
        if places is None:
            return
        for name in NAMES:
            here, count = places[name], len(self.values[name])
            others = range(count) if name in _CHOICES else (here - 1, here + 1)
            yield from (self.candidate({**places, name: at}) for at in others if at != here and 0 <= at < count)
        budgets = ("max_num_batched_tokens", "max_num_seqs")
        for change in (-1, 1):
            moved = {name: places[name] + change for name in budgets}
            if all(0 <= at < len(self.values[name]) for name, at in moved.items()):
                yield self.candidate({**places, **moved})


def space_around(start: Candidate, *, most_at_once: int, known_drafts: int, asked: Sequence[str] = ()) -> Space:
    """The values around a start.

    Args:
        most_at_once: requests that are ever there together; more seats would stay empty.
        known_drafts: K up to which acceptance is known; 0 without a drafter.
        asked: `name=a,b,c` each, in place of the values chosen here.

    Raises:
        SettingError: an unknown name or a value that cannot be.
    """
    budget, seats = start.max_num_batched_tokens, start.max_num_seqs
    values: dict[str, tuple[Any, ...]] = {
        "num_speculative_tokens": tuple(range(max(known_drafts, start.num_speculative_tokens) + 1)),
        "max_num_batched_tokens": _steps(budget / _SPAN, budget * _SPAN, budget),
        "max_num_seqs": _steps(min(seats, most_at_once) / _SPAN, min(seats * _MORE_SEATS, most_at_once), seats),
        **_CHOICES,
    }
    for text in asked:
        name, chosen = _asked(text)
        if name == "num_speculative_tokens" and not known_drafts and chosen != (0,):
            raise SettingError(f"--search {text}: nothing is known of a drafter here, so only 0 can be tried")
        values[name] = chosen
    return Space(values)


def _steps(low: float, high: float, own: int) -> tuple[int, ...]:
    """Powers of two and the halves between them within [low, high], and `own`."""
    powers = (1 << power for power in range(24))
    steps = {step for power in powers for step in (power, power * 3 // 2) if max(low, 1) <= step <= high}
    return tuple(sorted(steps | {own}))


def _asked(text: str) -> tuple[str, tuple[Any, ...]]:
    name, equals, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    words = [word.strip() for word in listed.split(",")]
    if not equals or not all(words):
        raise SettingError(f"--search takes a setting and its values, NAME=A,B,C, got {text!r}")
    if name not in NAMES:
        raise unknown_name("--search: setting", name, NAMES)
    if len(words) > MAX_VALUES:
        raise SettingError(f"--search {name}: {len(words)} values are too many; {MAX_VALUES} at most")
    if name in _CHOICES:
        for word in words:
            if word not in _CHOICES[name]:
                raise unknown_name(f"--search {name}: value", word, _CHOICES[name])
        return name, tuple(dict.fromkeys(words))
    least = _LOWEST[name]
    most = MAX_SPECULATIVE_TOKENS if name == "num_speculative_tokens" else 1 << 24
    numbers = set()
    for word in words:
        if not (word.isdecimal() and len(word) <= 12) or not least <= int(word) <= most:
            raise SettingError(f"--search {name}: values are whole numbers from {least} to {most}, got {shown(word)}")
        numbers.add(int(word))
    return name, tuple(sorted(numbers))
