"""Drafters that come with the package: a folder each, found by the target that its config.json names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.models.config import ModelLoadError
from slipstream.models.files import errors_name, get_str, read_json
from slipstream.models.fingerprint import tokenizer_fingerprint
from slipstream.models.loading import ModelSource
from slipstream.speculation.drafter_config import TargetIdentity
from slipstream.speculation.formats import speculators

SHIPPED_FOLDER = Path(__file__).parent.parent / "drafters"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShippedDrafter:
    """A drafter in the package, as far as its config.json tells.

    Attributes:
        folder: speculators format; its name is the drafter's. method: `dspark` or `dflash`. target: whom it was made
            for.
    """

    folder: Path
    method: str
    target: TargetIdentity

    @property
    def name(self) -> str:
        """What `"model"` may say in place of a folder."""
        return self.folder.name


def shipped_drafters(folder: Path = SHIPPED_FOLDER) -> list[ShippedDrafter]:
    """All drafters in the folders of `folder`, by name. One whose config.json cannot be read is logged and left out."""
    found = []
    for path in sorted(folder.glob("*/config.json")):
        try:
            values = read_json(path)
            with errors_name(path):
                method = get_str(values, speculators.TYPE_KEY)
                found.append(ShippedDrafter(path.parent, method, speculators.read_target(values)))
        except ModelLoadError as error:
            logger.warning("A drafter of this package cannot be used: %s", error)
    return found


def drafter_folder(name: str, folder: Path = SHIPPED_FOLDER) -> Path:
    """What the user calls a folder, where it is there; else that of the drafter that ships under this name, if any."""
    path, own = Path(name).expanduser(), folder / name
    return own if not path.exists() and Path(name).name == name and own.is_dir() else path


def made_for(
    drafters: Sequence[ShippedDrafter], target: ModelSource, weights: Callable[[], str | None]
) -> list[ShippedDrafter]:
    """Those of a target with this shape, this tokenizer and these weights.

    Args:
        weights: gives the fingerprint of the target's weights; asked only where all else fits, since it may read them.
    """
    near = [drafter for drafter in drafters if _has_shape_of(drafter.target, target)]
    if not near:
        return []
    tokenizer = tokenizer_fingerprint(target.tokenizer)
    near = [drafter for drafter in near if drafter.target.tokenizer == tokenizer]
    if not near:
        return []
    found = weights()
    return [drafter for drafter in near if drafter.target.weights == found]


def _has_shape_of(identity: TargetIdentity, target: ModelSource) -> bool:
    config = target.config
    return (identity.vocab_size, identity.hidden_size, identity.num_layers) == (
        config.vocab_size,
        config.hidden_size,
        config.num_layers,
    )
