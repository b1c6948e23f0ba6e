"""Forced acceptance: measure a scheduler at a chosen acceptance length, with a real target and no real drafter.

An untimed plain pass gives every request's text. The drafts are that text, of which each position is spoiled with
chance 1 - p, so that a step of K drafts gives L tokens in the mean: p + p² + … + p^K = L - 1.

Luck is drawn per (seed, request, absolute position), nothing else. That is the geometric model exactly: a refused
position is filled by the target's own token and never tried again, and positions behind it were not looked at, so every
verified draft meets luck of its own. And it is equal luck for two policies under comparison: wherever their steps
begin, both stumble at the same positions of the same text. Keying by the anchor as well would also be geometric, but
one step's difference would then give two policies unrelated luck.

The drafter obeys the budgets of a named layout. Its own cost is not part of any figure: *forced, draft cost not
included*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.config import SettingError, Settings, SpeculativeSettings
from slipstream.scheduler.layouts import LAYOUTS, DraftLayout
from slipstream.scheduler.protocol import DraftBlock, DraftRequest
from slipstream.simulation.acceptance import conditional_acceptance, luck

FORCED_NOTE = "forced, draft cost not included"


def check_forced(speculative: SpeculativeSettings) -> tuple[DraftLayout, float]:
    """The layout to obey and the conditional acceptance p.

    Raises:
        SettingError: no such layout, or an acceptance length that K drafts cannot give.
    """
    layout = LAYOUTS.get(speculative.layout or "")
    if layout is None:
        raise SettingError(
            f"--speculative-config: forced needs the layout whose budgets it obeys, got {speculative.layout!r}; "
            f"choose one of {', '.join(LAYOUTS)}"
        )
    if speculative.acceptance_length is None:
        raise SettingError(
            "--speculative-config: forced needs acceptance_length, the mean tokens per step, "
            f"between 1 and {speculative.num_drafts + 1}"
        )
    return layout, conditional_acceptance(speculative.acceptance_length, speculative.num_drafts)


@dataclass(frozen=True, slots=True)
class KnownText:
    """A request's whole output as the plain pass gave it; `index` is the request's place in the workload."""

    index: int
    token_ids: Sequence[int]


KnownTexts = Mapping[str, KnownText]
"""Request id, as the drafter sees it -> text."""


class ForcedDrafter:
    """A Drafter that knows the text.

    Args:
        texts: the ids must not repeat with another text while the drafter lives.
        conditional: chance that a draft is right, given the ones before it are.
        vocab_size: a spoiled draft is another token below this.
    """

    def __init__(
        self, layout: DraftLayout, texts: KnownTexts, conditional: float, vocab_size: int, seed: int = 0
    ) -> None:
        self.layout = layout
        self._texts = texts
        self._conditional = conditional
        self._vocab_size = vocab_size
        self._seed = seed
        self._drafts: dict[str, list[int]] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """Empty blocks for requests without a known text (warm-up) and past its end."""
        blocks = []
        for request in requests:
            drafts = self._spoiled_text(request.request_id)
            position = len(request.token_ids) - request.num_prompt_tokens
            blocks.append(DraftBlock(drafts[position : position + request.num_draft_tokens], distributions=()))
        return blocks

    def release(self, request_id: str) -> None:
        self._drafts.pop(request_id, None)

    def _spoiled_text(self, request_id: str) -> list[int]:
        """The drafts for every output position of the request; they do not depend on where a step begins."""
        drafts = self._drafts.get(request_id)
        if drafts is None:
            known = self._texts.get(request_id)
            if known is None:
                return []
            chances = luck(self._seed, known.index, len(known.token_ids))
            drafts = [
                token if chance < self._conditional else (token + 1) % self._vocab_size
                for token, chance in zip(known.token_ids, chances.tolist(), strict=True)
            ]
            self._drafts[request_id] = drafts
        return drafts


def forced_drafter(settings: Settings, texts: KnownTexts, vocab_size: int, luck_seed: int) -> ForcedDrafter | None:
    """The drafter of settings that force acceptance; None for others."""
    speculative = settings.speculative
    if speculative is None or speculative.method != "forced":
        return None
    layout, conditional = check_forced(speculative)
    return ForcedDrafter(layout, texts, conditional, vocab_size, luck_seed)
