"""What every executor remembers of its requests between plans, and how a plan becomes rows and a result.

Shared by the torch, simulated and scripted executors, so that a plan means the same thing to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.request import SamplingParams
from slipstream.scheduler.protocol import (
    DraftBlock,
    DraftDistribution,
    DraftRequest,
    Matchers,
    NewRequest,
    RequestResult,
    SampledTokens,
    SampleRow,
    ScheduledRequest,
    StepPlan,
    TokenMatcher,
)


@dataclass(slots=True)
class RequestState:
    """One request as its executor knows it; ahead of the scheduler's view while a commit is outstanding.

    Attributes:
        token_ids: prompt and committed output; the last one is the anchor once the prompt is computed.
        num_computed_tokens: tokens whose KV is in `block_ids`.
        draft_handle, draft_token_ids: drafts at hand and the step that made them.
        draft_distributions: what they were drawn from, one each, or empty (see DraftBlock).
        reports_prompt: log probabilities of the prompt are wanted and not known yet.
        matcher: of its constraint; None without one.
        saw_stop: a stop token stands somewhere in the output, perhaps not at its end: a step goes on past it.
    """

    request_id: str
    epoch: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    choice_index: int
    max_total_tokens: int
    stop_token_ids: frozenset[int]
    reports_prompt: bool = False
    num_computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    draft_handle: int = -1
    draft_token_ids: list[int] = field(default_factory=list)
    draft_distributions: Sequence[DraftDistribution] = ()
    saw_stop: bool = False
    matcher: TokenMatcher | None = None

    @classmethod
    def from_new(cls, new: NewRequest, matchers: Matchers | None = None) -> RequestState:
        """`matchers` gives a constrained request its matcher, which reads what the request has written so far."""
        state = cls(
            new.request_id,
            new.epoch,
            list(new.token_ids),
            new.num_prompt_tokens,
            new.sampling,
            new.seed,
            new.choice_index,
            new.max_total_tokens,
            new.stop_token_ids,
            new.sampling.prompt_logprobs is not None and len(new.token_ids) == new.num_prompt_tokens,
        )
        if new.sampling.constraint is not None:
            if matchers is None:
                raise ValueError(f"request {new.request_id!r} is constrained, and this executor has no matchers")
            state.matcher = matchers.matcher(new.sampling.constraint, new.stop_token_ids)
        return state

    def usable_drafts(self, block: DraftBlock) -> int:
        """How many of the block's first drafts are worth verifying: those that the constraint allows.

        One that is to be judged by the textbook rule stays though it is not allowed: its row refuses it for certain,
        and samples from what the target has more of than the drafter. To leave it out would change the text's law.
        """
        if self.matcher is None:
            return len(block.token_ids)
        legal = self.matcher.num_legal(self.token_ids[self.num_prompt_tokens :], block.token_ids)
        return min(legal + bool(block.distributions), len(block.token_ids))

    def append(self, token_ids: list[int]) -> None:
        """Take in emitted tokens, and see whether one of them stops the request."""
        if not self.stop_token_ids.isdisjoint(token_ids):
            first = len(self.token_ids) - self.num_prompt_tokens
            self.saw_stop |= any(
                token in self.stop_token_ids and position >= self.sampling.min_tokens
                for position, token in enumerate(token_ids, start=first)
            )
        self.token_ids.extend(token_ids)

    def drop_drafts(self) -> None:
        """Forget the drafts at hand, and what they were drawn from, which may be large."""
        self.draft_handle, self.draft_token_ids, self.draft_distributions = -1, [], ()

    def has_ended(self) -> bool:
        """Whether it has ended for certain; the scheduler judges too, and knows more (stop strings)."""
        return self.saw_stop or len(self.token_ids) >= self.max_total_tokens


@dataclass(slots=True)
class RequestRows:
    """The target rows of one request in a step.

    Attributes:
        first_position: position of the first row; row i is at `first_position + i`.
        token_ids: input ids of the rows, shape [Q].
        draft_token_ids: the drafts among them, at the end.
        num_sampled: rows at the end whose logits are sampled: 1 + drafts, or 0 for a chunk that does not emit.
        draft_distributions: what the drafts were drawn from, one each, or empty.
        reported_token_ids: prompt tokens after the first, second, … row, whose log probabilities are wanted.
    """

    state: RequestState
    scheduled: ScheduledRequest
    first_position: int
    token_ids: list[int]
    draft_token_ids: list[int]
    num_sampled: int
    draft_distributions: Sequence[DraftDistribution] = ()
    reported_token_ids: Sequence[int] = ()

    def sample_rows(self) -> list[SampleRow]:
        """One SampleRow per sampled row, in row order."""
        state, distributions = self.state, self.draft_distributions
        return [
            SampleRow(
                state.sampling,
                state.seed,
                state.choice_index,
                state.stop_token_ids,
                state.token_ids,
                state.num_prompt_tokens,
                self.draft_token_ids,
                i,
                distributions[i] if i < len(distributions) else None,
                state.matcher,
            )
            for i in range(self.num_sampled)
        ]


class ExecutorState:
    """States of all requests an executor serves, keyed by request id."""

    def __init__(self, matchers: Matchers | None = None) -> None:
        """`matchers` are needed where requests are constrained."""
        self.requests: dict[str, RequestState] = {}
        self._matchers = matchers

    def begin(self, plan: StepPlan) -> list[RequestRows]:
        """Apply releases, new requests and new blocks; give each scheduled request's rows, in plan order."""
        for request_id in plan.released_request_ids:
            self.requests.pop(request_id, None)
        for new in plan.new_requests:
            self.requests[new.request_id] = RequestState.from_new(new, self._matchers)
        planned = {scheduled.request_id for scheduled in plan.requests}
        for request_id, state in self.requests.items():
            if state.draft_distributions and request_id not in planned:
                state.drop_drafts()  # a handle is good for one step
        return [self._rows_of(scheduled) for scheduled in plan.requests]

    def _rows_of(self, scheduled: ScheduledRequest) -> RequestRows:
        state = self.requests[scheduled.request_id]
        state.block_ids.extend(scheduled.new_block_ids)
        if scheduled.is_prefill:
            first = scheduled.num_computed_tokens
            end = first + scheduled.num_target_rows
            reported: Sequence[int] = ()
            if state.reports_prompt:
                reported = state.token_ids[first + 1 : min(end + 1, state.num_prompt_tokens)]
            return RequestRows(
                state,
                scheduled,
                first,
                state.token_ids[first:end],
                [],
                int(scheduled.emits),
                reported_token_ids=reported,
            )
        drafts: list[int] = []
        if scheduled.num_verify_rows and scheduled.draft_handle == state.draft_handle:
            # The plan's count is an upper bound; a row past the request's end would be waste.
            room = state.max_total_tokens - len(state.token_ids) - 1
            drafts = state.draft_token_ids[: max(min(scheduled.num_verify_rows, room), 0)]
        return RequestRows(
            state,
            scheduled,
            len(state.token_ids) - 1,
            [state.token_ids[-1], *drafts],
            drafts,
            1 + len(drafts),
            state.draft_distributions[: len(drafts)],
        )

    def accept(self, rows: RequestRows, sampled: SampledTokens, first: int) -> RequestResult:
        """Advance a request by what was sampled from its rows; `first` indexes its first sampled row.

        A draft is accepted when it equals the row's own sample: with coupled sampling (design 5) because both draw with
        the same noise, with the textbook rejection rule because the sampler has judged it (sampling/rejection.py).
        """
        state = rows.state
        scheduled = rows.scheduled
        result = RequestResult(scheduled.request_id, scheduled.epoch, [])
        state.drop_drafts()
        if not rows.num_sampled:
            state.num_computed_tokens = rows.first_position + len(rows.token_ids)
            return result
        tokens = sampled.token_ids[first : first + rows.num_sampled]
        accepted = 0
        for draft, token in zip(rows.draft_token_ids, tokens, strict=False):
            if draft != token:
                break
            accepted += 1
        result.token_ids = tokens[: accepted + 1]
        result.num_verified = len(rows.draft_token_ids)
        result.num_accepted = accepted
        result.refused_draft_ids = rows.draft_token_ids[accepted:]
        if state.sampling.logprobs is not None:
            entries = sampled.logprobs[first : first + accepted + 1]
            result.logprobs = [entry for entry in entries if entry is not None]
        state.num_computed_tokens = rows.first_position + len(rows.token_ids) - len(rows.draft_token_ids) + accepted
        state.append(result.token_ids)
        return result

    def draft_request(self, rows: RequestRows) -> DraftRequest | None:
        """The request as a drafter needs it; None when the plan asks for no drafts, or none could be used any more.

        The plan counts one emitted token; here the accepted drafts are known too, so fewer may be left to draft.
        """
        state = rows.state
        num_drafts = min(rows.scheduled.num_draft_tokens, state.max_total_tokens - len(state.token_ids) - 1)
        if num_drafts <= 0 or not rows.num_sampled or state.has_ended():
            return None
        return DraftRequest(
            state.request_id,
            state.token_ids,
            num_drafts,
            state.num_prompt_tokens,
            state.sampling,
            state.seed,
            state.choice_index,
            state.block_ids,
        )

    def keep_drafts(self, rows: RequestRows, result: RequestResult, block: DraftBlock, step: int) -> None:
        """Store a new draft block under the step's handle and report it, without drafts that cannot be accepted."""
        count = min(rows.scheduled.num_draft_tokens, rows.state.usable_drafts(block))
        drafts = block.token_ids[:count]
        rows.state.draft_handle = step
        rows.state.draft_token_ids = drafts
        rows.state.draft_distributions = (block.distributions or ())[: len(drafts)]
        result.num_draft_tokens = len(drafts)
        result.draft_confidences = None if block.confidences is None else block.confidences[: len(drafts)]
