"""A tiny target and dialogues with a rule in them that a drafter can learn in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from models.tiny_models import write_tiny_hf_model

from slipstream.config import ModelSettings
from slipstream.models.loading import open_model
from slipstream.speculation.drafter_config import Algorithm, RowLayout
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
from slipstream.training.corpus import Dialogue
from slipstream.training.settings import DrafterShape, Recipe, TrainSettings
from slipstream.training.target import TrainingTarget
from slipstream.training.train_run import Progress, TrainRun

SHAPE = DrafterShape(block_size=4, draft_vocab_size=60, markov_rank=8, num_layers=2, from_layers=(1, 2))
SETTINGS = TrainSettings(
    num_steps=12,
    num_sequences=3,
    num_anchors=6,
    learning_rate=3e-3,
    evaluate_every=6,
    checkpoint_every=4,
    held_out_every=5,
)


def tiny_target(folder: Path, **overrides: Any) -> TrainingTarget:
    source = open_model(str(write_tiny_hf_model(folder / "model", **overrides)), progress=False)
    return TrainingTarget.load(source, ModelSettings(dtype="float32"))


def tiny_dialogues(count: int = 16, length: int = 30, seed: int = 0) -> list[Dialogue]:
    """Some context, then an answer of random tokens below 60."""
    rng = np.random.default_rng(seed)
    dialogues = []
    for _ in range(count):
        size = int(rng.integers(length // 2, length))
        dialogues.append(Dialogue(rng.integers(5, 60, size).astype(np.int32), np.arange(size) >= 6, "test", 1.0))
    return dialogues


def tiny_run(
    folder: Path,
    target: TrainingTarget,
    dialogues: list[Dialogue],
    *,
    states: Path | None = None,
    start: Path | None = None,
    **changes: Any,
) -> TrainRun:
    """`changes` are fields of TrainSettings or DrafterShape."""
    shape = {key: value for key, value in changes.items() if key in DrafterShape.__dataclass_fields__}
    train = {key: value for key, value in changes.items() if key not in shape}
    recipe = Recipe(drafter=replace(SHAPE, **shape), train=replace(SETTINGS, **train))
    checkpoint = None if start is None else open_drafter_checkpoint(start)
    return TrainRun(folder, recipe, target, dialogues, Progress(), states, checkpoint)


FILL_IN = {
    "algorithm": Algorithm.DFLASH,
    "layout": RowLayout.FILL_IN,
    "block_size": 5,
    "markov_rank": 0,
    "has_confidence": False,
}
