"""Section: a table of a TOML file, read key by key; what is unknown, of another type or out of range is refused."""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.config import SettingError, shown

_TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def unknown_name(what: str, name: str, known: Sequence[str]) -> SettingError:
    """The error for a name that is none of `known`: names the nearest, or lists them all."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return SettingError(f"{what} {shown(name)} is not known; {hint}")


class Section:
    """One table. `where` names it in errors, such as `[machine]`. Raises SettingError for a key that is not in `known`
    (None knows every key)."""

    def __init__(self, where: str, values: object, known: Sequence[str] | None) -> None:
        if not isinstance(values, Mapping):
            raise SettingError(f"{where} must be a table of keys and values, got {shown(values)}")
        self.where = where
        self.values: Mapping[str, Any] = values
        for key in values:
            if known is not None and key not in known:
                raise unknown_name(f"{where}: key", key, known)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def _required(self, key: str) -> Any:
        if key not in self.values:
            raise SettingError(f"{self.where}: {key} is missing")
        return self.values[key]

    def text(self, key: str, default: str | None = None) -> str:
        """A text; required without a default."""
        value = self._required(key) if default is None else self.values.get(key, default)
        if not isinstance(value, str):
            raise SettingError(f"{self.where}: {key} must be a text, got {shown(value)}")
        return _printable(f"{self.where}: {key}", value)

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        """One of `options`; required without a default."""
        value = self.text(key, default)
        if value not in options:
            raise unknown_name(f"{self.where}: {key}", value, options)
        return value

    def number(
        self, key: str, default: float | None = None, *, low: float = 0.0, high: float = math.inf, above: bool = False
    ) -> float:
        """A finite number within [low, high], or above `low`; required without a default."""
        value = self._required(key) if default is None else self.values.get(key, default)
        number = _finite(value)
        if number is None:
            raise SettingError(f"{self.where}: {key} must be a number, got {shown(value)}")
        if above and not number > low:
            raise SettingError(f"{self.where}: {key} must be above {low:g}, got {number:g}")
        if not low <= number <= high:
            nearest = low if number < low else high
            raise SettingError(
                f"{self.where}: {key} must be {_range(low, high)}, got {number:g}; the nearest is {nearest:g}"
            )
        return number

    def whole(self, key: str, default: int | None = None, *, low: int = 0, high: int = 10**9) -> int:
        """A whole number within [low, high]; required without a default."""
        value = self._required(key) if default is None else self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SettingError(f"{self.where}: {key} must be a whole number, got {shown(value)}")
        if not low <= value <= high:
            nearest = low if value < low else high
            raise SettingError(
                f"{self.where}: {key} must be {_range(low, high)}, got {shown(value)}; the nearest is {nearest}"
            )
        return value

    def numbers(self, key: str, *, low: float = 0.0, high: float = math.inf) -> tuple[float, ...]:
        """A list of at least one number within [low, high]."""
        values = self._required(key)
        if not isinstance(values, list) or not values:
            raise SettingError(f"{self.where}: {key} must be a list of numbers, got {shown(values)}")
        items = Section(f"{self.where}: {key}", {str(i): value for i, value in enumerate(values)}, None)
        return tuple(items.number(str(i), low=low, high=high) for i in range(len(values)))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where the key is not there."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise SettingError(f"{self.where}: {key} must be a list of texts, got {shown(values)}")
        return tuple(_printable(f"{self.where}: {key}", value) for value in values)

    def section(self, key: str, known: Sequence[str]) -> Section:
        """A table inside this one; empty where the key is not there."""
        where = f"{self.where[:-1]}.{key}]" if self.where.endswith("]") else f"[{key}]"
        return Section(where, self.values.get(key, {}), known)

    def sections(self, name: str, key: str, known: Sequence[str]) -> list[Section]:
        """`[[name]]`, a list of tables; empty where the key is not there."""
        values = self.values.get(key, [])
        if not isinstance(values, list):
            raise SettingError(f"write {key} as [[{name}]], once for each, got {shown(values)}")
        return [Section(f"[[{name}]] {place}", value, known) for place, value in enumerate(values, start=1)]


def _range(low: float, high: float) -> str:
    if high == math.inf:
        return f"{low:g} or more"
    low_text, high_text = (f"{bound:g}" if isinstance(bound, float) else str(bound) for bound in (low, high))
    return f"between {low_text} and {high_text}"


def _finite(value: object) -> float | None:
    """The number as a float; None for what is no number, or no finite one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _printable(where: str, text: str) -> str:
    """The text, which reports show; refused where it would steer a terminal or turn the line around."""
    for sign in text:
        if unicodedata.category(sign) in ("Cc", "Cs") or unicodedata.bidirectional(sign) in _TURNING:
            raise SettingError(f"{where} has the control character {sign!a}; leave it out")
    return text
