"""AcceptanceChoice: how a scenario describes which drafts are accepted, before K is known."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.config import MAX_SPECULATIVE_TOKENS, SettingError
from slipstream.lab.toml_section import Section
from slipstream.simulation.acceptance import AcceptanceModel, GeometricAcceptance, conditional_acceptance
from slipstream.simulation.mixture_acceptance import AcceptanceClass, MixtureAcceptance, conditional_chances

_CHANCE_KEYS = ("mean", "conditional", "chances", "survivals")
_MAX_SHARE = 1e6
CLASS_KEYS = ("share", "num_drafts", *_CHANCE_KEYS)
ACCEPTANCE_KEYS = ("class", "num_drafts", *_CHANCE_KEYS, "difficulty_spread", "calibration_error", "seed")


@dataclass(frozen=True, slots=True)
class AcceptanceChoice:
    """Chances of drafts given the ones before them; depths past the last one named keep its chance.

    Attributes:
        classes: kinds of requests. The other attributes are those of MixtureAcceptance.
    """

    classes: tuple[AcceptanceClass, ...]
    difficulty_spread: float = 0.0
    calibration_error: float | None = None
    seed: int = 0

    def build(self, num_speculative_tokens: int) -> AcceptanceModel:
        """The model for drafts of up to K tokens."""
        only = self.classes[0].chances
        if (
            len(self.classes) == 1
            and len(set(only)) == 1
            and not self.difficulty_spread
            and self.calibration_error is None
        ):
            return GeometricAcceptance(only[0], self.seed)
        depth = max(num_speculative_tokens, *(len(one.chances) for one in self.classes))
        return MixtureAcceptance(
            [AcceptanceClass(one.share, _deepened(one.chances, depth)) for one in self.classes],
            difficulty_spread=self.difficulty_spread,
            calibration_error=self.calibration_error,
            seed=self.seed,
        )

    def in_words(self) -> str:
        """For reports."""
        kinds = ", ".join(" ".join(f"{chance:.3f}" for chance in one.chances) for one in self.classes)
        spread = f"; difficulty spread {self.difficulty_spread:g}" if self.difficulty_spread else ""
        error = self.calibration_error
        believed = "no confidences" if error is None else f"confidences with a calibration error of {error:g}"
        return f"chances given the drafts before: {kinds}{spread}; {believed}"


def read_acceptance(section: Section, num_drafts: int) -> AcceptanceChoice:
    """From `[acceptance]`. `num_drafts`: drafts that a `mean` is of, where it does not say."""
    classes = section.sections("acceptance.class", "class", CLASS_KEYS)
    if classes:
        for key in ("num_drafts", *_CHANCE_KEYS):
            if key in section:
                raise SettingError(f"{section.where}: {key} belongs into each [[acceptance.class]] where there are any")
        read = [
            AcceptanceClass(one.number("share", high=_MAX_SHARE, above=True), _chances(one, num_drafts))
            for one in classes
        ]
    else:
        read = [AcceptanceClass(1.0, _chances(section, num_drafts))]
    choice = AcceptanceChoice(
        tuple(read),
        section.number("difficulty_spread", 0.0, high=20),
        section.number("calibration_error") if "calibration_error" in section else None,
        section.whole("seed", 0),
    )
    choice.build(num_drafts)
    return choice


def _chances(section: Section, num_drafts: int) -> tuple[float, ...]:
    given = [key for key in _CHANCE_KEYS if key in section]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise SettingError(f"{section.where} needs one of {', '.join(_CHANCE_KEYS)}, got {found}")
    key = given[0]
    if key != "mean" and "num_drafts" in section:
        raise SettingError(f"{section.where}: num_drafts says what mean is of, and goes with nothing else")
    if key == "conditional":
        return (section.number(key, high=1.0),)
    if key == "mean":
        count = section.whole("num_drafts", num_drafts, low=1, high=MAX_SPECULATIVE_TOKENS)
        mean = section.number(key)
    else:
        chances = section.numbers(key, high=1.0)
        if len(chances) > MAX_SPECULATIVE_TOKENS:
            raise SettingError(
                f"{section.where}: {key} has {len(chances)} depths; {MAX_SPECULATIVE_TOKENS} drafts are the most"
            )
        if key == "chances":
            return chances
    try:
        return (conditional_acceptance(mean, count),) if key == "mean" else conditional_chances(chances)
    except SettingError as error:
        raise SettingError(f"{section.where}: {key}: {error}") from None


def _deepened(chances: tuple[float, ...], depth: int) -> tuple[float, ...]:
    return chances + chances[-1:] * (depth - len(chances))
