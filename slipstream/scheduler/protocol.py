"""What scheduler, executors and drafters exchange (design 1). Data only: no logic, no torch, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from slipstream.request import FinishReason, Logprobs, OutputConstraint, Request, SamplingParams
from slipstream.scheduler.layouts import DraftLayout


class StepKind(StrEnum):
    """What a step holds: only anchors and verify rows, only prompt rows, or both."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"
    EMPTY = "empty"


class StepMode(StrEnum):
    """How the target's pass runs."""

    EAGER = "eager"
    PIECEWISE = "piecewise"
    FULL_GRAPH = "full_graph"


@dataclass(slots=True)
class ScheduledRequest:
    """One request's share of a step.

    The executor keeps token ids, drafts and block tables itself; this says how many rows, not which ids.

    Attributes:
        request_id, epoch: whose; results of another epoch are stale.
        num_computed_tokens: first target row's position; with a commit outstanding (lag 1) an upper bound for decodes,
            where the executor's own count is the truth.
        num_target_rows: Q: prompt rows, or the anchor and the drafts to verify.
        num_verify_rows: drafts among them; an upper bound, the drafter may have given fewer.
        draft_handle: step number whose draft pass made those drafts; drafts of any other step are not to be used.
        is_prefill: the rows are known tokens (prompt, or recomputed output after a preemption).
        emits: the last rows are sampled; False for a prompt chunk that is not the last.
        num_draft_tokens: drafts to make after this step, 0 for none.
        num_draft_query_rows: rows of the drafter's pass this request may use.
        new_block_ids: KV blocks to append to the request's block table before the step runs.
    """

    request_id: str
    epoch: int
    num_computed_tokens: int
    num_target_rows: int
    num_verify_rows: int
    draft_handle: int
    is_prefill: bool
    emits: bool
    num_draft_tokens: int
    num_draft_query_rows: int
    new_block_ids: Sequence[int]


@dataclass(slots=True)
class NewRequest:
    """What an executor must know of a request it has not seen, or that was preempted since.

    Attributes:
        token_ids: all known tokens (prompt, and output when resumed), shape [T].
        num_prompt_tokens: how many of them are the prompt.
        max_total_tokens: no row is needed at this position or beyond.
        stop_token_ids: lets the executor skip drafting for a request that just ended.
    """

    request_id: str
    epoch: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    choice_index: int
    max_total_tokens: int
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class StepPlan:
    """One step as decided by the scheduler. `requests` has decodes first, then prompt chunks.

    Attributes:
        step: number of this step, counted from 0; also the handle of the drafts it makes.
        new_requests: descriptions of requests scheduled for the first time (or again after preemption).
        released_request_ids: requests the executor may forget (ended, aborted or preempted), before anything else.
        num_prefill_rows, num_verify_rows, num_draft_query_rows: sums over `requests`.
        num_target_rows: rows of the target's pass; at most `max_num_batched_tokens`.
        num_padded_rows: rows the pass is padded to in its mode.
        graph_key: name of the captured graph to replay, or None.
        costs_version: version of the cost table it was decided by; None without one.
        reason: in words, why the step holds what it holds.
    """

    step: int
    requests: list[ScheduledRequest]
    new_requests: list[NewRequest] = field(default_factory=list)
    released_request_ids: list[str] = field(default_factory=list)
    kind: StepKind = StepKind.EMPTY
    mode: StepMode = StepMode.EAGER
    num_target_rows: int = 0
    num_prefill_rows: int = 0
    num_verify_rows: int = 0
    num_draft_query_rows: int = 0
    num_padded_rows: int = 0
    graph_key: str | None = None
    costs_version: int | None = None
    reason: str = ""


@dataclass(slots=True)
class RequestResult:
    """What a step did for one request, in the order of the plan.

    Attributes:
        token_ids: accepted drafts and the target's own token after them; empty for a chunk that does not emit.
        num_verified: drafts that really ran as target rows.
        num_accepted: leading run of accepted drafts; `len(token_ids) == num_accepted + 1` when it emits.
        num_draft_tokens: drafts now waiting under this step's handle.
        draft_confidences: chance that each of them is accepted given the ones before (conditional, not cumulative);
            None when the drafter is silent.
        logprobs: one entry per emitted token when asked for.
        error: the request cannot go on; the message is for its user.
        prompt_logprobs: where asked for, of the prompt's tokens that stand after the first, second, … row of a chunk.
        refused_draft_ids: verified drafts that were not accepted, in order; the first one stood where the target's own
            token stands now.
    """

    request_id: str
    epoch: int
    token_ids: list[int]
    num_verified: int = 0
    num_accepted: int = 0
    num_draft_tokens: int = 0
    draft_confidences: Sequence[float] | None = None
    logprobs: list[Logprobs] | None = None
    error: str | None = None
    prompt_logprobs: list[Logprobs] | None = None
    refused_draft_ids: Sequence[int] = ()


@dataclass(slots=True)
class StepResult:
    """What ran and what it cost.

    Attributes:
        results: one per planned request, same order.
        mode: how the target's pass ran.
        num_target_rows, num_draft_query_rows: rows that ran (without padding).
        num_skipped_drafts: requests the plan let draft but that the executor skipped, because they had just ended or
            have only one token left.
        target_ms, draft_ms: measured (or simulated) milliseconds of the two passes.
    """

    step: int
    results: list[RequestResult]
    mode: StepMode = StepMode.EAGER
    num_target_rows: int = 0
    num_draft_query_rows: int = 0
    num_skipped_drafts: int = 0
    target_ms: float = 0.0
    draft_ms: float = 0.0


class Executor(Protocol):
    """Runs plans: in front of a real model, a simulated machine, or a scripted one."""

    def execute(self, plan: StepPlan) -> StepResult: ...


@dataclass(slots=True)
class StopVerdict:
    """Where and why a request ends.

    Attributes:
        num_kept_tokens: how many of the new tokens stay (the one that completed the stop is kept).
        stop_reason: the user's stop token id or string; None for EOS and length.
    """

    num_kept_tokens: int
    finish_reason: FinishReason
    stop_reason: int | str | None = None


class StopChecker(Protocol):
    """Judges new tokens one by one, before any of them is hashed or counted (design 1)."""

    def check(self, request: Request, new_token_ids: list[int]) -> StopVerdict | None:
        """`request.token_ids` does not hold the new tokens yet. None: it goes on."""
        ...


@dataclass(slots=True)
class DraftRequest:
    """A request that is to draft.

    Attributes:
        token_ids: every committed token, the anchor last; not to be changed, shape [p + 1].
        num_draft_tokens: drafts wanted at most.
        num_prompt_tokens, sampling, seed, choice_index: as in NewRequest.
        block_ids: its block table, under whose ids a drafter keeps its own KV; not to be changed.
    """

    request_id: str
    token_ids: list[int]
    num_draft_tokens: int
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    choice_index: int
    block_ids: list[int] = field(default_factory=list)


class DraftDistribution:
    """q, what a draft was drawn from with noise of its own: a draft that brings it is judged by the textbook rejection
    rule where that is asked for. Here it is only handed on; the kinds are the sampler's (sampling/rejection.py)."""

    __slots__ = ()


@dataclass(slots=True)
class DraftBlock:
    """Drafts for the positions after the anchor, in order; may be shorter than asked, even empty.

    Attributes:
        confidences: as RequestResult's; None when the drafter is silent.
        num_query_rows: rows of the drafter's pass that the block took beside carried ones; None for what the layout
            says. A chain knows better: its n-grams take none.
        distributions: one per draft that was drawn with noise of its own; empty for drafts that are to be judged by
            equality with the target's own sample (certain ones, or drawn with the target's noise); None where the
            drafter does not say, which means the same and is counted where the textbook rule was asked for.
    """

    token_ids: list[int]
    confidences: Sequence[float] | None = None
    num_query_rows: int | None = None
    distributions: Sequence[DraftDistribution] | None = None


class Drafter(Protocol):
    """Proposes tokens after the anchor of each request."""

    layout: DraftLayout

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """One block per request, same order. Raising costs the step's drafts, never an answer."""
        ...

    def release(self, request_id: str) -> None:
        """The request ended or was preempted: forget what was kept for it."""
        ...


class TokenMatcher(Protocol):
    """One request's constraint. What it says is a function of the output alone, however far it was asked before, so
    nothing has to be rolled back when drafts are refused or a request starts over."""

    def allowed(self, output: Sequence[int]) -> bytes | None:
        """The tokens that may follow `output` (all output tokens so far, shape [T]): token i is bit i % 8, the lowest
        first, of byte i // 8; of ids beyond the last byte none may.

        None where `output` itself is not allowed, as after a draft that will be refused. Raises ConstraintError.
        """
        ...

    def num_legal(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """How many of `drafts` may follow `output` one after the other, an end of the output at most once."""
        ...


class ConstraintError(RuntimeError):
    """A constraint cannot be followed further: no token fits, or it has become too complex. The message is for the
    request's user."""


class Matchers(Protocol):
    """Gives requests their matchers."""

    def matcher(self, constraint: OutputConstraint, stop_token_ids: frozenset[int]) -> TokenMatcher:
        """A new one; `stop_token_ids` end the output where the constraint is fulfilled, like EOS."""
        ...


@dataclass(slots=True)
class SampleRow:
    """A logits row from which one token is sampled: everything but the logits (design 5).

    The sampled token is a pure function of the logits row and of what stands here; the row's prefix is
    `token_ids + draft_token_ids[:num_drafts]`, so nothing has to be rolled back when a draft is refused.

    Attributes:
        token_ids: committed tokens, prompt first, the anchor last; shared, not to be changed.
        draft_token_ids: drafts verified in this step; shared. num_drafts: how many of them precede this row.
        stop_token_ids: EOS and stop ids, which `min_tokens` forbids.
        draft_distribution: what the draft that this row judges, `draft_token_ids[num_drafts]`, was drawn from; None
            where it is judged by equality, and where the row judges none.
        matcher: the request's; shared by its rows. None without a constraint.
    """

    sampling: SamplingParams
    seed: int
    choice_index: int
    stop_token_ids: frozenset[int]
    token_ids: list[int]
    num_prompt_tokens: int
    draft_token_ids: list[int]
    num_drafts: int
    draft_distribution: DraftDistribution | None = None
    matcher: TokenMatcher | None = None

    @property
    def output_token_ids(self) -> list[int]:
        """Output tokens before this row, drafts included."""
        return self.token_ids[self.num_prompt_tokens :] + self.draft_token_ids[: self.num_drafts]

    @property
    def output_position(self) -> int:
        """0 for the first output token."""
        return len(self.token_ids) - self.num_prompt_tokens + self.num_drafts


@dataclass(slots=True)
class SampledTokens:
    """One token per SampleRow, and what is reported of it (None where not asked for)."""

    token_ids: list[int]
    logprobs: list[Logprobs | None]
