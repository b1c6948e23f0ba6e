"""StepPolicy: how many prompt and verify rows a step holds (design 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.protocol import StepMode


@dataclass(slots=True)
class StepCandidates:
    """What the next step could hold. Every running decode already has its one target row.

    Attributes:
        num_decodes: those decodes.
        num_drafts: drafts at hand that could be verified.
        num_prompt_rows: rows that prompts with a seat and free blocks could use, counted up to `num_rows_left`.
        num_rows_left: rows of the target's budget after the decodes' own.
        min_prefill_tokens: rows prompts are promised before verify rows.
        num_free_seats: requests that could still be admitted.
    """

    num_decodes: int
    num_drafts: int
    num_prompt_rows: int
    num_rows_left: int
    min_prefill_tokens: int
    num_free_seats: int


@dataclass(slots=True)
class StepComposition:
    """The decision: rows for prompts, rows for verification in total, and the mode to run in."""

    num_prompt_rows: int
    num_verify_rows: int
    mode: StepMode


class StepPolicy(Protocol):
    """Decides what a step holds. Pure: same arguments, same answer."""

    def compose(self, candidates: StepCandidates, costs: StepCosts | None, now: float) -> StepComposition: ...


class MixAtOncePolicy:
    """Prompts get what they are promised, verification the rest, prompts what verification leaves over."""

    def compose(self, candidates: StepCandidates, costs: StepCosts | None, now: float) -> StepComposition:
        """See StepPolicy; costs and time play no part."""
        left = candidates.num_rows_left
        promised = min(candidates.min_prefill_tokens, candidates.num_prompt_rows, left)
        num_verify_rows = min(candidates.num_drafts, left - promised)
        num_prompt_rows = min(candidates.num_prompt_rows, left - num_verify_rows)
        return StepComposition(num_prompt_rows, num_verify_rows, StepMode.EAGER)
