"""A drafter that is trained on: its weights, draft vocabulary and mask token are kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from slipstream.config import SettingError
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.formats.checkpoint import DrafterCheckpoint


def continued_model(start: DrafterCheckpoint, config: DrafterConfig, device: torch.device) -> DrafterModel:
    """The weights of `start` in float32, to be trained.

    Args:
        config: of the drafter that is to come of it.

    Raises:
        SettingError: it has another shape than the recipe says, or another target. ModelLoadError: broken files.
    """
    old, new = _shape_of(start.config), _shape_of(config)
    for name, value in new.items():
        if old[name] != value:
            raise SettingError(
                f"--start {start.directory}: its {name} is {old[name]!r:.80}, the recipe and the target give "
                f"{value!r:.80}; only a drafter of the same shape and target can be trained on"
            )
    return start.load(torch.float32, device).requires_grad_(True).train()


def _shape_of(config: DrafterConfig) -> dict[str, Any]:
    """Everything but how it came about."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in ("calibrations", "training")
    }
