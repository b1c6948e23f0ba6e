"""Slipstream: an LLM server whose scheduler keeps draft capacity apart from the target's token budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.version import __version__

if TYPE_CHECKING:
    from slipstream.engine.llm import LLM
    from slipstream.request import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """`LLM` and `SamplingParams`, imported when they are asked for: PyTorch takes seconds."""
    if name == "LLM":
        from slipstream.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from slipstream.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
