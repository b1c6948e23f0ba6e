"""From `--speculative-config` to a drafter: the one table of all methods."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from slipstream.config import AUTO_METHOD, SettingError, SpeculativeSettings, check_speculative
from slipstream.speculation.ngram import NgramDrafter
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.sources import PlainSource, open_block_drafter, open_chain, open_draft_model


def _open_ngram(settings: SpeculativeSettings) -> DrafterSource:
    return PlainSource(settings, NgramDrafter(settings.prompt_lookup_min, settings.prompt_lookup_max))


def _open_auto(settings: SpeculativeSettings) -> DrafterSource:
    """What drafts for a target that nothing is known of; for one that is known, see choice.py."""
    return _open_ngram(dataclasses.replace(settings, method="ngram"))


def _refuse_forced(settings: SpeculativeSettings) -> DrafterSource:
    raise SettingError(
        "--speculative-config: method 'forced' needs each text beforehand and works only offline, in "
        "`slipstream bench` and `slipstream compare`; to serve, use 'ngram' or none"
    )


def _open_chain(settings: SpeculativeSettings) -> DrafterSource:
    return open_chain(settings, lambda part: BUILDERS[part.method](part))


BUILDERS: dict[str, Callable[[SpeculativeSettings], DrafterSource]] = {
    "ngram": _open_ngram,
    "dflash": open_block_drafter,
    "dspark": open_block_drafter,
    "draft_model": open_draft_model,
    "chain": _open_chain,
    "forced": _refuse_forced,
    AUTO_METHOD: _open_auto,
}


def open_drafter(settings: SpeculativeSettings | None) -> DrafterSource | None:
    """The method that the settings name, its files found and checked; None without speculation.

    Raises:
        SettingError: a value that cannot work, or a method that cannot be served.
        ModelLoadError: its files cannot be used.
    """
    if settings is None:
        return None
    check_speculative(settings)
    return BUILDERS[settings.method](settings)
