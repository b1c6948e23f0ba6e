"""Prompts: from a JSONL file, written here, or random token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

SYNTHETIC_NOTE = "synthetic: acceptance not meaningful"
MAX_PROMPT_TOKENS = 20_000_000

BUILT_IN_PROMPTS = (
    "Explain to a curious child why the sky turns red in the evening.",
    "Write a short letter to a neighbour who has found your lost cat.",
    "List five things to check before setting off on a long bicycle trip, and say why each of them matters.",
    "A baker sells 36 rolls in the morning and twice as many in the afternoon. Each roll costs 40 cents. "
    "How much does she take in that day? Show each step.",
    "Write a Python function that takes a list of words and returns the longest one; when several are equally long, "
    "it returns the first. Then show two examples of its use.",
    "Summarise in three sentences: The harbour was built for sailing ships. When steamers came it was dredged twice, "
    "and when steamers grew it was left to the fishing boats, which still unload there before dawn.",
    "Translate into plain English: the party of the first part shall not be held liable for any delay whatsoever.",
    "What is the difference between a lake and a pond? Answer as a table with three rows.",
    "Continue the story: The lamp in the lighthouse went out at the very moment the radio began to speak.",
    "Repeat the following list in alphabetical order: pear, fig, quince, apple, plum, cherry, medlar, grape.",
    "Give a recipe for a vegetable soup that can be cooked in one pot, with amounts for four people.",
    "Describe how a bill becomes a law in a country with two chambers of parliament, one step per line.",
)


class DatasetError(ValueError):
    """A prompt file that cannot be used; names the file and the line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as text, or as token ids; exactly one of them is given."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """Where prompts come from.

    Attributes:
        is_synthetic: random tokens. What a model says to them is not what it says to people, so acceptance measured
            on them tells nothing, and no verdict on it is printed.
    """

    name: str
    prompts: Sequence[Prompt]
    is_synthetic: bool = False

    def take(self, count: int) -> list[Prompt]:
        """The first `count` prompts, from the start again where there are fewer."""
        return list(islice(cycle(self.prompts), count))


def built_in() -> Dataset:
    """A dozen prompts written for this project."""
    return Dataset("built-in", [Prompt(text) for text in BUILT_IN_PROMPTS])


def from_jsonl(path: Path) -> Dataset:
    """One object per line: `{"prompt": "…"}` or `{"turns": ["…", …]}`, whose first turn is the prompt.

    Raises:
        DatasetError: no such file, no prompts, or a line of another shape.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"cannot read prompts from {path}: {error}") from None
    prompts = [Prompt(_text_of(path, number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise DatasetError(f"{path} holds no prompts")
    return Dataset(path.name, prompts)


def _text_of(path: Path, number: int, line: str) -> str:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}, line {number}: not JSON ({error})") from None
    text = None
    if isinstance(value, dict):
        turns = value.get("turns")
        text = turns[0] if isinstance(turns, list) and turns else value.get("prompt")
    if not isinstance(text, str) or not text:
        raise DatasetError(f'{path}, line {number}: expected {{"prompt": "…"}} or {{"turns": ["…"]}}')
    return text


def random_tokens(count: int, length: int, vocab_size: int, seed: int = 0) -> Dataset:
    """`count` prompts of `length` token ids, uniform over the vocabulary."""
    _check_size(count, length)
    ids = np.random.default_rng(seed).integers(0, vocab_size, (count, length)).tolist()
    return Dataset(f"random tokens, {length} each", [Prompt(token_ids=tuple(row)) for row in ids], is_synthetic=True)


def cut_to_length(name: str, texts: Sequence[Sequence[int]], count: int, length: int) -> Dataset:
    """`count` different prompts of exactly `length` tokens, cut from tokenised texts laid end to end.

    Prompt i begins with text i; each further round through the texts begins one token later.
    """
    _check_size(count, length)
    prompts = []
    for index in range(count):
        skipped, first = divmod(index, len(texts))
        order = (token for k in cycle(range(len(texts))) for token in texts[(first + k) % len(texts)])
        prompts.append(Prompt(token_ids=tuple(islice(order, skipped, skipped + length))))
    return Dataset(f"{name}, cut to {length} tokens", prompts)


def _check_size(count: int, length: int) -> None:
    if length < 1:
        raise DatasetError(f"--input-len must be at least 1, got {length}")
    if count * length > MAX_PROMPT_TOKENS:
        most = MAX_PROMPT_TOKENS // length
        raise DatasetError(
            f"--num-prompts {count} of --input-len {length} are more than {MAX_PROMPT_TOKENS} tokens; "
            f"at this length the most is --num-prompts {most}"
        )
