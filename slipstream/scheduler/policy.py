"""StepPolicy: how many prompt and verify rows a step holds (design 4). The rules are in composition.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.prompt_wait import PromptWait
from slipstream.scheduler.verification import VerifyOffer


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
        num_kv_tokens: KV tokens that the decodes' rows read.
        num_prompt_kv_tokens: KV tokens that the prompt rows would read, if all of them ran.
        num_emitting_prompts: prompts whose last row is among `num_prompt_rows`: seats that would begin to emit.
        num_draft_rows_per_request: query rows of a drafting request; 0 where nobody drafts.
        num_ready_rows: rows of all prompts that have a seat or could have one, an estimate beyond `num_rows_left`.
        next_prompt_rows: rows of the next prompt to become ready, an estimate.
        tokens_to_ends: of the decodes whose ends would make room for a waiting prompt, the output tokens after which
            they are certain to end, rising; they may end earlier.
        prompt_wait: how long prompts have waited that could run.
        offer: what verifying how many drafts is expected to bring; asked only by rules that weigh it.
    """

    num_decodes: int
    num_drafts: int
    num_prompt_rows: int
    num_rows_left: int
    min_prefill_tokens: int
    num_free_seats: int
    num_kv_tokens: int = 0
    num_prompt_kv_tokens: int = 0
    num_emitting_prompts: int = 0
    num_draft_rows_per_request: int = 0
    num_ready_rows: int = 0
    next_prompt_rows: float = 0.0
    tokens_to_ends: Sequence[int] = ()
    prompt_wait: PromptWait = field(default_factory=PromptWait)
    offer: Callable[[], VerifyOffer] | None = None


@dataclass(slots=True)
class StepComposition:
    """The decision.

    Attributes:
        num_prompt_rows: rows for prompts. num_verify_rows: rows for verification in total.
        depth: every decode verifies its first `depth` drafts (one K per step, for uniform graphs); None distributes
            the rows by the planner.
        reason: in words, why; empty where there was nothing to decide.
        tokens_per_decode: tokens that a decode is expected to make in this step.
        finishes_prompts: whether prompts may run their last rows; where not, they end together in a later step.
    """

    num_prompt_rows: int
    num_verify_rows: int
    depth: int | None = None
    reason: str = ""
    tokens_per_decode: float = 1.0
    finishes_prompts: bool = True


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
        return StepComposition(num_prompt_rows, num_verify_rows)
