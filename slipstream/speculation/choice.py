"""Which drafter serves a target: the one that was asked for, or the default."""

from __future__ import annotations

import dataclasses
import difflib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import (
    AUTO_METHOD,
    BLOCK_DRAFTERS,
    ResolvedSetting,
    SettingError,
    SpeculativeSettings,
    check_speculative,
)
from slipstream.models.config import ModelLoadError
from slipstream.models.loading import ModelSource
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.shipped import SHIPPED_FOLDER, ShippedDrafter, drafter_folder, made_for, shipped_drafters

SHIPPED_DEFAULT: tuple[str, ...] = ("ngram", "dspark")
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
        model: what the user calls the drafter, or its name in the package.
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
            pairs = [(field, getattr(settings, field.name)) for field in dataclasses.fields(settings)]
            words = {field.name: word for field, word in pairs if word != field.default}
            if self.model is not None:
                words["model"] = self.model
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
        ModelLoadError: what was asked for cannot be used. A default that cannot is logged, and another one drafts.
    """
    if settings is None:
        return ChosenSpeculation(None, "user")
    check_speculative(settings)
    if target is None:
        return ChosenSpeculation(open_drafter(settings), _source_of(settings))
    shipped = shipped_drafters(folder)

    def fitting(method: str) -> ShippedDrafter | None:
        of_method = [drafter for drafter in shipped if drafter.method == method]
        return next(iter(made_for(of_method, target, weights or target.fingerprint)), None)

    if settings.method == AUTO_METHOD:
        return _default(settings, target, fitting(default[-1]), default)
    named, model = settings, None
    method = next((name for name in (settings.method, *settings.drafters) if name in BLOCK_DRAFTERS), None)
    if method is not None:
        if settings.model is None:
            drafter = fitting(method)
            if drafter is None:
                raise SettingError(_none_ships(method, target, shipped))
            path, model = drafter.folder, drafter.name
        else:
            path, model = _named(settings.model, folder, shipped), settings.model
        named = dataclasses.replace(settings, model=str(path))
    source = _checked(open_drafter(named), target)
    return ChosenSpeculation(source, "user", model=model)


def _default(
    settings: SpeculativeSettings, target: ModelSource, shipped: ShippedDrafter | None, drafters: tuple[str, ...]
) -> ChosenSpeculation:
    source, why = _source_of(settings), "no drafter ships with this model"
    if shipped is not None:
        method, chained = (drafters[0], ()) if len(drafters) == 1 else ("chain", drafters)
        wanted = dataclasses.replace(settings, method=method, drafters=chained, model=str(shipped.folder))
        try:
            drafter = _checked(open_drafter(wanted), target)
        except ModelLoadError as error:
            logger.warning("The drafter %s ships with this model and cannot be used: %s", shipped.name, error)
            why = f"{shipped.name} ships with this model and cannot be used: {error}"
        else:
            return ChosenSpeculation(drafter, source, "ships with this model", shipped.name)
    return ChosenSpeculation(open_drafter(dataclasses.replace(settings, method=OTHER_DEFAULT)), source, why)


def _source_of(settings: SpeculativeSettings) -> str:
    """Where they come from; AUTO_METHOD and nothing else is what is not asked for."""
    return "default" if settings == SpeculativeSettings(method=AUTO_METHOD) else "user"


def _checked(source: DrafterSource | None, target: ModelSource) -> DrafterSource | None:
    if source is not None:
        source.check_target(target)
    return source


def _named(model: str, folder: Path, shipped: Sequence[ShippedDrafter]) -> Path:
    """The folder that is meant. Raises SettingError for what is nearly the name of one that ships."""
    path = drafter_folder(model, folder)
    near = difflib.get_close_matches(model, [drafter.name for drafter in shipped], n=1, cutoff=0.8)
    if near and not path.exists():
        raise SettingError(f"{_FLAG}: {model} is no folder, and no such drafter ships; did you mean {near[0]!r}?")
    return path


def _none_ships(method: str, target: ModelSource, shipped: Sequence[ShippedDrafter]) -> str:
    of_method = [drafter for drafter in shipped if drafter.method == method]
    targets = ", ".join(f"{drafter.target.name} ({drafter.name})" for drafter in of_method)
    near = [drafter for drafter in of_method if drafter.target.name == target.name]
    known = f"one ships for {targets}" if targets else "none ships at all"
    return (
        f"{_FLAG}: no {method} drafter ships for {target.name}{' with these weights' if near else ''}; {known}. "
        f'Give the folder of a drafter of this model as "model", or use the method {OTHER_DEFAULT!r}'
    )
