"""A recipe from a TOML file; what the file does not say keeps its default (training/settings.py)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from slipstream.config import SettingError
from slipstream.lab.toml_section import Section
from slipstream.speculation.drafter_config import Algorithm, RowLayout
from slipstream.training.settings import DataSettings, DrafterShape, LossWeights, Recipe, TrainSettings

SECTIONS: dict[str, type[DataSettings | DrafterShape | TrainSettings | LossWeights]] = {
    "data": DataSettings,
    "drafter": DrafterShape,
    "train": TrainSettings,
    "loss": LossWeights,
}
EXTENDS = "extends"
_MAX_TEMPERATURE = 2.0


def read_recipe(path: Path | None, changes: Mapping[str, str] | None = None) -> Recipe:
    """The recipe of a file (None: all defaults), with single values changed.

    A file with `extends = "other.toml"`, a path from its own folder, changes single keys of that one.

    Args:
        changes: `section.key` -> its value as TOML, such as `{"train.num_steps": "100"}`.

    Raises:
        SettingError: names the file, the key and what would work.
    """
    values: dict[str, Any] = {} if path is None else _read(path)
    for name, text in (changes or {}).items():
        _change(values, name, text)
    top = Section("the recipe", values, tuple(SECTIONS))
    train = _train(_section(top, "train"), _loss(_section(top, "loss")))
    return Recipe(data=_data(_section(top, "data")), drafter=_drafter(_section(top, "drafter")), train=train)


def _read(path: Path) -> dict[str, Any]:
    values = _parsed(path)
    base = values.pop(EXTENDS, None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise SettingError(f"the recipe {path}: {EXTENDS} must be the path of another recipe, got {base!r}")
    merged = _parsed(path.parent / base)
    if EXTENDS in merged:
        raise SettingError(f"the recipe {path} extends {base}, which extends another; name that one")
    for name, section in values.items():
        below = merged.get(name)
        merged[name] = below | section if isinstance(below, dict) and isinstance(section, dict) else section
    return merged


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"cannot read the recipe {path}: {error}") from None


def _change(values: dict[str, Any], name: str, text: str) -> None:
    section, dot, key = name.partition(".")
    if not dot or section not in SECTIONS:
        raise SettingError(f"--set {name}={text}: name it section.key, with a section of {', '.join(SECTIONS)}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a text without quotes
    values.setdefault(section, {})[key] = value


def _section(top: Section, name: str) -> Section:
    known = [field.name for field in fields(SECTIONS[name]) if field.name != "loss"]
    return Section(f"[{name}]", top.values.get(name, {}), known)


def _data(section: Section) -> DataSettings:
    d = DataSettings()
    temperatures = _shares(section, "temperatures", {str(key): share for key, share in d.temperatures.items()})
    return DataSettings(
        seed=section.whole("seed", d.seed),
        num_dialogues=section.whole("num_dialogues", d.num_dialogues, low=1),
        kinds=_shares(section, "kinds", d.kinds),
        temperatures={_temperature(key): share for key, share in temperatures.items()},
        second_turns=section.number("second_turns", d.second_turns, high=1.0),
        max_prompt_tokens=section.whole("max_prompt_tokens", d.max_prompt_tokens, low=1),
        max_answer_tokens=section.whole("max_answer_tokens", d.max_answer_tokens, low=2),
        min_answer_tokens=section.whole("min_answer_tokens", d.min_answer_tokens, low=2),
        num_per_file=section.whole("num_per_file", d.num_per_file, low=1),
        max_num_seqs=section.whole("max_num_seqs", d.max_num_seqs, low=1),
    )


def _drafter(section: Section) -> DrafterShape:
    d = DrafterShape()
    return DrafterShape(
        algorithm=Algorithm(section.choice("algorithm", [a.value for a in Algorithm], d.algorithm.value)),
        layout=RowLayout(section.choice("layout", [layout.value for layout in RowLayout], d.layout.value)),
        block_size=section.whole("block_size", d.block_size, low=1, high=64),
        num_layers=section.whole("num_layers", d.num_layers, low=1, high=64),
        target_layers=_layers(section, "target_layers", low=-1),
        from_layers=_layers(section, "from_layers", low=0),
        draft_vocab_size=section.whole("draft_vocab_size", d.draft_vocab_size),
        markov_rank=section.whole("markov_rank", d.markov_rank),
        has_confidence=_truth(section, "has_confidence", d.has_confidence),
        window=section.whole("window", d.window),
        mask_token=section.text("mask_token", d.mask_token),
    )


def _train(section: Section, loss: LossWeights) -> TrainSettings:
    d = TrainSettings()
    return TrainSettings(
        seed=section.whole("seed", d.seed),
        num_steps=section.whole("num_steps", d.num_steps, low=1),
        num_sequences=section.whole("num_sequences", d.num_sequences, low=1),
        num_anchors=section.whole("num_anchors", d.num_anchors, low=1),
        learning_rate=section.number("learning_rate", d.learning_rate, above=True),
        warmup=section.number("warmup", d.warmup, high=1.0),
        weight_decay=section.number("weight_decay", d.weight_decay),
        clip=section.number("clip", d.clip, above=True),
        loss=loss,
        held_out_every=section.whole("held_out_every", d.held_out_every, low=2),
        evaluate_every=section.whole("evaluate_every", d.evaluate_every, low=1),
        checkpoint_every=section.whole("checkpoint_every", d.checkpoint_every, low=1),
        state_cache=_truth(section, "state_cache", d.state_cache),
        max_context=section.whole("max_context", d.max_context, low=16),
    )


def _loss(section: Section) -> LossWeights:
    d = LossWeights()
    weights = LossWeights(
        cross_entropy=section.number("cross_entropy", d.cross_entropy),
        l1=section.number("l1", d.l1),
        kl=section.number("kl", d.kl),
        confidence=section.number("confidence", d.confidence),
        decay=section.number("decay", d.decay, above=True),
    )
    if not weights.cross_entropy + weights.l1 + weights.kl:
        raise SettingError("[loss]: cross_entropy, l1 and kl are all 0, so nothing would be learned")
    return weights


def _shares(section: Section, key: str, default: Mapping[str, float]) -> dict[str, float]:
    """A table of names and weights, in the order of the file."""
    if key not in section:
        return dict(default)
    part = Section(f"{section.where[:-1]}.{key}]", section.values[key], None)
    shares = {name: part.number(name) for name in part.values}
    if not sum(shares.values()):
        raise SettingError(f"{part.where}: at least one share must be above 0")
    return {name: share for name, share in shares.items() if share}


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= _MAX_TEMPERATURE:
        raise SettingError(f"[data.temperatures]: {text!r} is no temperature between 0 and {_MAX_TEMPERATURE:g}")
    return value


def _layers(section: Section, key: str, *, low: int) -> tuple[int, ...]:
    values = section.values.get(key, [])
    if not isinstance(values, list) or not all(isinstance(v, int) and v >= low for v in values):
        raise SettingError(f"{section.where}: {key} must be a list of layer numbers from {low} on, got {values!r}")
    return tuple(values)


def _truth(section: Section, key: str, default: bool) -> bool:
    value = section.values.get(key, default)
    if not isinstance(value, bool):
        raise SettingError(f"{section.where}: {key} must be true or false, got {value!r}")
    return value
