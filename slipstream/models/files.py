"""Reading a model's files such that whatever is wrong with one becomes a ModelLoadError that names it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.models.config import ModelLoadError


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Turn every error of the body into a ModelLoadError that begins with the file's name.

    Libraries meet broken files with all kinds of exceptions; the Rust ones even raise a `PanicException`, which is no
    `Exception`.
    """
    try:
        yield
    except ModelLoadError as error:
        if str(path) in str(error):
            raise
        raise ModelLoadError(f"{path}: {error}") from error
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise ModelLoadError(f"{path}: broken file ({type(error).__name__}: {_short(error)})") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelLoadError(f"{path}: broken file ({_short(error)})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with errors_name(path):
        try:
            value = json.loads(path.read_bytes())
        except RecursionError:
            raise ModelLoadError("JSON nested too deeply") from None
        except ValueError as error:
            raise ModelLoadError(f"not valid JSON ({_short(error)})") from error
        if not isinstance(value, dict):
            raise ModelLoadError(f"must hold a JSON object, holds {_short(value)}")
        return value


_REQUIRED = object()


def get_int(values: Mapping[str, Any], key: str, default: Any = _REQUIRED) -> int:
    """A whole number among a file's values; an absent or null one gives the default or, without one, an error."""
    value = _get(values, key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelLoadError(f"{key} must be a whole number, got {_short(value)}")
    return value


def get_float(values: Mapping[str, Any], key: str, default: Any = _REQUIRED) -> float:
    """Like get_int, for any number."""
    value = _get(values, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelLoadError(f"{key} must be a number, got {_short(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ModelLoadError(f"{key} is too large") from None


def get_bool(values: Mapping[str, Any], key: str, default: Any = _REQUIRED) -> bool:
    """Like get_int, for true or false."""
    value = _get(values, key, default)
    if not isinstance(value, bool):
        raise ModelLoadError(f"{key} must be true or false, got {_short(value)}")
    return value


def get_str(values: Mapping[str, Any], key: str, default: Any = _REQUIRED) -> str:
    """Like get_int, for text."""
    value = _get(values, key, default)
    if not isinstance(value, str):
        raise ModelLoadError(f"{key} must be text, got {_short(value)}")
    return value


def _get(values: Mapping[str, Any], key: str, default: Any) -> Any:
    value = values.get(key)
    if value is not None:
        return value
    if default is _REQUIRED:
        raise ModelLoadError(f"{key} is missing")
    return default


def _short(value: object) -> str:
    text = str(value) if isinstance(value, BaseException) else repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
