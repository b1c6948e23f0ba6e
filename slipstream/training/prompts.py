"""Prompts by kind: written here, from files, or left to the model."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from slipstream.bench.dataset import DatasetError, from_jsonl
from slipstream.config import SettingError
from slipstream.training.arithmetic_prompts import arithmetic_prompt
from slipstream.training.chat_prompts import OPENINGS, chat_prompt
from slipstream.training.code_prompts import code_prompt
from slipstream.training.settings import PROMPT_KINDS, DataSettings

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DialogueStart:
    """How dialogue `number` begins, and what else is drawn for it.

    Attributes:
        text: the user's words; with `is_opening`, only the first of them, and the model writes the rest.
        temperature: of the answers. seed: of everything that the engine draws for it.
        has_second_turn: it goes on after the first answer.
    """

    number: int
    kind: str
    text: str
    is_opening: bool
    temperature: float
    has_second_turn: bool
    seed: int


class PromptSource:
    """Draws the starts of dialogues; each is a function of the seed and its number. Raises SettingError."""

    def __init__(self, settings: DataSettings) -> None:
        self._settings = settings
        self._files: dict[str, list[str]] = {}
        for kind in settings.kinds:
            if kind not in PROMPT_KINDS:
                self._files[kind] = _prompts_of(kind)

    def start(self, number: int) -> DialogueStart:
        """How dialogue `number` begins."""
        settings = self._settings
        draw = random.Random(f"{settings.seed}/{number}")
        kind = _weighted(draw, settings.kinds)
        temperature = _weighted(draw, settings.temperatures)
        has_second_turn = draw.random() < settings.second_turns
        seed = draw.getrandbits(62)
        text = self._text(kind, number, draw)
        return DialogueStart(number, _name_of(kind), text, kind == "self", temperature, has_second_turn, seed)

    def _text(self, kind: str, number: int, draw: random.Random) -> str:
        if kind == "chat":
            return chat_prompt(draw)
        if kind == "arithmetic":
            return arithmetic_prompt(draw)
        if kind == "code":
            return code_prompt(draw)
        if kind == "self":
            return draw.choice(OPENINGS)
        return draw.choice(self._files[kind])


def _prompts_of(path: str) -> list[str]:
    try:
        return [prompt.text for prompt in from_jsonl(Path(path)).prompts if prompt.text]
    except DatasetError as error:
        raise SettingError(
            f"[data.kinds] {error}; a kind is one of {', '.join(PROMPT_KINDS)}, or such a file"
        ) from None


def _name_of(kind: str) -> str:
    return kind if kind in PROMPT_KINDS else Path(kind).stem


def _weighted(draw: random.Random, weights: Mapping[_T, float]) -> _T:
    return draw.choices(list(weights), weights=list(weights.values()))[0]
