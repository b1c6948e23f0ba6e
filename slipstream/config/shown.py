"""How values are shown in errors."""

from __future__ import annotations

_MOST = 100


def shown(value: object) -> str:
    """The value on one line, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # whole numbers of thousands of digits, lists in thousands of lists
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _MOST else f"{text[: _MOST - 20]}…{text[-20:]}"
