"""Which drafter serves a target: the one that was asked for, or the default."""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.config import AUTO_METHOD, BLOCK_DRAFTERS, ResolvedSetting, SettingError, SpeculativeSettings
from slipstream.models.config import ModelLoadError
from slipstream.models.loading import ModelSource
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.shipped import SHIPPED_FOLDER, ShippedDrafter, made_for, shipped_drafters

SHIPPED_DEFAULT: tuple[str, ...] = ("dspark",)
"""What drafts by default for a target that a drafter ships for, and whose: several are a chain, the model last."""
OTHER_DEFAULT = "ngram"
"""What drafts by default for any other target."""

_FLAG = "--speculative-config"
Fingerprint = Callable[[], str | None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChosenSpeculation:
    """What drafts for a target, and why.

    Attributes:
        drafter: opened, and checked against the target; None for no speculation.
        source: `user` or `default`. reason: why, where it was not the user's word.
        model: what the settings call the drafter, where it is one of the package.
    """

    drafter: DrafterSource | None
    source: str
    reason: str = ""
    model: str | None = None

    @property
    def settings(self) -> SpeculativeSettings | None:
        """With every value decided that the method decides."""
        return None if self.drafter is None else self.drafter.settings

    def as_setting(self) -> ResolvedSetting:
        """The line of the resolution report; its value can be given to `--speculative-config`."""
        settings, value = self.settings, "none"
        if settings is not None:
            words: dict[str, Any] = {"method": settings.method}
            if settings.drafters:
                words["drafters"] = list(settings.drafters)
            if settings.model is not None:
                words["model"] = self.model or settings.model
            value = json.dumps(words)
        return ResolvedSetting("speculative_config", value, self.source, self.reason)


def choose_speculation(
    settings: SpeculativeSettings | None,
    target: ModelSource | None,
    *,
    folder: Path = SHIPPED_FOLDER,
    weights: Fingerprint | None = None,
    default: tuple[str, ...] = SHIPPED_DEFAULT,
) -> ChosenSpeculation:
    """Open what the settings name, or the default of this target.

    Args:
        target: None where no real model runs.
        folder: where the drafters of the package lie.
        weights: gives the fingerprint of the target's weights; None reads them where it is asked for.
        default: what drafts where one ships for the target.

    Raises:
        SettingError: a value that cannot work, or no drafter ships for the target.
        ModelLoadError: what was asked for cannot be used. A default that cannot is logged, and nothing drafts.
    """
    if settings is None:
        return ChosenSpeculation(None, "user")
    if target is None:
        return ChosenSpeculation(open_drafter(settings), "default" if settings.method == AUTO_METHOD else "user")
    shipped = shipped_drafters(folder)

    def fitting(method: str) -> ShippedDrafter | None:
        of_method = [drafter for drafter in shipped if drafter.method == method]
        return next(iter(made_for(of_method, target, weights or target.fingerprint)), None)

    if settings.method == AUTO_METHOD:
        return _default(settings, target, fitting(default[-1]), default)
    named, model = settings, None
    method = next((name for name in (settings.method, *settings.drafters) if name in BLOCK_DRAFTERS), None)
    if method is not None:
        drafter = fitting(method) if settings.model is None else _named(settings.model, shipped)
        if drafter is None and settings.model is None:
            raise SettingError(_none_ships(method, target, shipped))
        if drafter is not None:
            named, model = dataclasses.replace(settings, model=str(drafter.folder)), drafter.name
    source = _checked(open_drafter(named), target)
    return ChosenSpeculation(source, "user", model=model)


def _default(
    settings: SpeculativeSettings, target: ModelSource, shipped: ShippedDrafter | None, drafters: tuple[str, ...]
) -> ChosenSpeculation:
    if shipped is None:
        other = dataclasses.replace(settings, method=OTHER_DEFAULT)
        return ChosenSpeculation(open_drafter(other), "default", "no drafter ships with this model")
    method, chained = (drafters[0], ()) if len(drafters) == 1 else ("chain", drafters)
    wanted = dataclasses.replace(settings, method=method, drafters=chained, model=str(shipped.folder))
    try:
        source = _checked(open_drafter(wanted), target)
    except ModelLoadError as error:
        logger.warning("The drafter %s ships with this model and cannot be used: %s", shipped.name, error)
        return ChosenSpeculation(None, "default", f"{shipped.name} ships with this model and cannot be used: {error}")
    return ChosenSpeculation(source, "default", "ships with this model", shipped.name)


def _checked(source: DrafterSource | None, target: ModelSource) -> DrafterSource | None:
    if source is not None:
        source.check_target(target)
    return source


def _named(model: str, shipped: Sequence[ShippedDrafter]) -> ShippedDrafter | None:
    """The drafter of this name; None for what must be a folder."""
    names = [drafter.name for drafter in shipped]
    if model in names:
        return shipped[names.index(model)]
    near = difflib.get_close_matches(model, names, n=1, cutoff=0.8)
    if near and not Path(model).expanduser().exists():
        raise SettingError(f"{_FLAG}: {model} is no folder, and no such drafter ships; did you mean {near[0]!r}?")
    return None


def _none_ships(method: str, target: ModelSource, shipped: Sequence[ShippedDrafter]) -> str:
    of_method = [drafter for drafter in shipped if drafter.method == method]
    targets = ", ".join(f"{drafter.target.name} ({drafter.name})" for drafter in of_method)
    near = [drafter for drafter in of_method if drafter.target.name == target.name]
    known = f"one ships for {targets}" if targets else "none ships at all"
    return (
        f"{_FLAG}: no {method} drafter ships for {target.name}{' with these weights' if near else ''}; {known}. "
        f'Give the folder of a drafter of this model as "model", or use the method {OTHER_DEFAULT!r}'
    )
