"""From `--speculative-config` to a drafter."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.config import SettingError, SpeculativeSettings, check_speculative
from slipstream.scheduler.protocol import Drafter
from slipstream.speculation.ngram import NgramDrafter


def _build_ngram(settings: SpeculativeSettings) -> Drafter:
    return NgramDrafter(settings.prompt_lookup_min, settings.prompt_lookup_max)


def _refuse_forced(settings: SpeculativeSettings) -> Drafter:
    raise SettingError(
        "--speculative-config: method 'forced' needs each text beforehand and works only offline, in "
        "`slipstream bench` and `slipstream compare`; to serve, use 'ngram' or none"
    )


BUILDERS: dict[str, Callable[[SpeculativeSettings], Drafter]] = {"ngram": _build_ngram, "forced": _refuse_forced}


def build_drafter(settings: SpeculativeSettings | None) -> Drafter | None:
    """The drafter that the settings name; None without speculation.

    Raises:
        SettingError: a value that cannot work, or a method that cannot be served.
    """
    if settings is None:
        return None
    check_speculative(settings)
    return BUILDERS[settings.method](settings)
