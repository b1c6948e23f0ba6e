"""Slipstream: an LLM server whose scheduler keeps draft capacity apart from the target's token budget."""

__version__ = "0.1.0"
