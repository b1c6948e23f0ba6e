"""Section: a table of a TOML file, read key by key; what is unknown, of another type or out of range is refused."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.config import SettingError


def unknown_name(what: str, name: str, known: Sequence[str]) -> SettingError:
    """The error for a name that is none of `known`: names the nearest, or lists them all."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return SettingError(f"{what} {name!r} is not known; {hint}")


class Section:
    """One table. `where` names it in errors, such as `[machine]`. Raises SettingError for a key that is not in `known`
    (None knows every key)."""

    def __init__(self, where: str, values: object, known: Sequence[str] | None) -> None:
        if not isinstance(values, Mapping):
            raise SettingError(f"{where} must be a table of keys and values, got {values!r}")
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
            raise SettingError(f"{self.where}: {key} must be a text, got {value!r}")
        return value

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
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise SettingError(f"{self.where}: {key} must be a number, got {value!r}")
        if above and not value > low:
            raise SettingError(f"{self.where}: {key} must be above {low:g}, got {value:g}")
        if not low <= value <= high:
            nearest = low if value < low else high
            raise SettingError(
                f"{self.where}: {key} must be {_range(low, high)}, got {value:g}; the nearest is {nearest:g}"
            )
        return float(value)

    def whole(self, key: str, default: int | None = None, *, low: int = 0, high: int = 10**9) -> int:
        """A whole number within [low, high]; required without a default."""
        value = self._required(key) if default is None else self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise SettingError(f"{self.where}: {key} must be a whole number, got {value!r}")
        if not low <= value <= high:
            nearest = low if value < low else high
            raise SettingError(
                f"{self.where}: {key} must be {_range(low, high)}, got {value}; the nearest is {nearest}"
            )
        return value

    def numbers(self, key: str, *, low: float = 0.0, high: float = math.inf) -> tuple[float, ...]:
        """A list of at least one number within [low, high]."""
        values = self._required(key)
        if not isinstance(values, list) or not values:
            raise SettingError(f"{self.where}: {key} must be a list of numbers, got {values!r}")
        items = Section(f"{self.where}: {key}", {str(i): value for i, value in enumerate(values)}, None)
        return tuple(items.number(str(i), low=low, high=high) for i in range(len(values)))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where the key is not there."""
        values = self.values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise SettingError(f"{self.where}: {key} must be a list of texts, got {values!r}")
        return tuple(values)

    def section(self, key: str, known: Sequence[str]) -> Section:
        """A table inside this one; empty where the key is not there."""
        return Section(f"{self.where.removesuffix(']')}.{key}]", self.values.get(key, {}), known)

    def sections(self, name: str, key: str, known: Sequence[str]) -> list[Section]:
        """`[[name]]`, a list of tables; empty where the key is not there."""
        values = self.values.get(key, [])
        if not isinstance(values, list):
            raise SettingError(f"write {key} as [[{name}]], once for each, got {values!r}")
        return [Section(f"[[{name}]] {place}", value, known) for place, value in enumerate(values, start=1)]


def _range(low: float, high: float) -> str:
    return f"{low:g} or more" if high in (math.inf, 10**9) else f"between {low:g} and {high:g}"
