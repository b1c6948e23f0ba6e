"""From `--speculative-config` to a drafter."""

from __future__ import annotations

from collections.abc import Callable

from slipstream.config import SettingError, SpeculativeSettings
from slipstream.scheduler.protocol import Drafter
from slipstream.speculation.ngram import NgramDrafter


def _build_ngram(settings: SpeculativeSettings) -> Drafter:
    shortest, longest = settings.prompt_lookup_min, settings.prompt_lookup_max
    if shortest < 1:
        raise SettingError(f"--speculative-config: prompt_lookup_min must be at least 1, got {shortest}")
    if longest < shortest:
        raise SettingError(
            f"--speculative-config: prompt_lookup_max ({longest}) must not be below prompt_lookup_min ({shortest})"
        )
    return NgramDrafter(shortest, longest)


def _refuse_forced(settings: SpeculativeSettings) -> Drafter:
    raise SettingError(
        "--speculative-config: method 'forced' needs each text beforehand and works only offline, in "
        "`slipstream bench` and `slipstream compare`; to serve, use 'ngram' or none"
    )


BUILDERS: dict[str, Callable[[SpeculativeSettings], Drafter]] = {"ngram": _build_ngram, "forced": _refuse_forced}


def build_drafter(settings: SpeculativeSettings | None) -> Drafter | None:
    """The drafter that the settings name; None without speculation.

    Raises:
        SettingError: a value that cannot work.
    """
    if settings is None or settings.num_speculative_tokens == 0:
        return None
    builder = BUILDERS.get(settings.method)
    if builder is None:
        raise SettingError(
            f"--speculative-config: method {settings.method!r} is not available; choose one of {', '.join(BUILDERS)}"
        )
    return builder(settings)
