"""Dataclasses from JSON: every field checked against its type."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from slipstream.config import shown

_T = TypeVar("_T")


def built(cls: type[_T], values: object, where: str) -> _T:
    """An instance of a dataclass of numbers, texts, tuples and None. Lists become tuples, whole numbers floats.

    Raises:
        TypeError: what is missing, unknown or of another type, named after `where`.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{where} is {shown(values)}")
    hints = typing.get_type_hints(cls)
    for name in values:
        if name not in hints:
            raise TypeError(f"{where} has {shown(name)}, which is not known")
    return cls(**{name: _as(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _as(hint: Any, value: Any, where: str) -> Any:
    if get_origin(hint) in (typing.Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple and isinstance(value, list):
        items = get_args(hint)
        if items[-1] is ...:
            items = items[:1] * len(value)
        if len(items) == len(value):
            return tuple(_as(one, item, where) for one, item in zip(items, value, strict=True))
    elif hint is float and type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value):
        return float(value)
    elif (hint is int and type(value) is int and abs(value) < 1 << 63) or (hint in (bool, str) and type(value) is hint):
        return value
    raise TypeError(f"{where} is {shown(value)}")
