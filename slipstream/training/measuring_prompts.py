"""Prompts to measure on: from files, or fresh ones of the kinds that a drafter was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from slipstream.bench.dataset import DatasetError, from_jsonl
from slipstream.config import SettingError
from slipstream.training.prompts import PromptSource
from slipstream.training.settings import DataSettings

FIRST_NUMBER = 1_000_000_000
"""Numbers of fresh dialogues begin here; training counts from 0, so their draws never meet."""
_FRESH_KINDS = ("chat", "arithmetic", "code")


def prompts_of(path: str) -> list[str]:
    """The prompts of a JSONL file. Raises SettingError."""
    try:
        return [prompt.text for prompt in from_jsonl(Path(path)).prompts if prompt.text]
    except DatasetError as error:
        raise SettingError(f"--prompts: {error}") from None


def calibration_prompts(files: Sequence[str], training: Mapping[str, Any], seed: int) -> Iterator[str]:
    """Prompts of files, turn by turn so that none dominates; without files, fresh ones without end, by the shares of
    kinds in the training record."""
    if files:
        lists = [prompts_of(path) for path in files]
        return chain.from_iterable(
            (prompts[i] for prompts in lists if i < len(prompts)) for i in range(max(map(len, lists)))
        )
    recorded = training.get("recipe", {}).get("data", {}).get("kinds", {})
    kinds = {kind: recorded.get(kind, 0.0) for kind in _FRESH_KINDS}
    if not sum(kinds.values()):
        kinds = dict.fromkeys(_FRESH_KINDS, 1.0)
    source = PromptSource(DataSettings(seed=seed, kinds=kinds))
    return (source.start(FIRST_NUMBER + number).text for number in count())
