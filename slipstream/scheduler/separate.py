"""SeparateBudget: target rows cost B, draft query rows cost D, never one for the other (design 3)."""

from __future__ import annotations

import functools
from collections.abc import Callable

from slipstream.request import Request, RequestStatus
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.policy import StepCandidates, StepPolicy
from slipstream.scheduler.prompt_wait import PromptWaitTracker
from slipstream.scheduler.statistics import NoDrafts
from slipstream.scheduler.step_builder import Decode, StepBuilder
from slipstream.scheduler.verification import Survivals, VerificationPlanner

ROW_BOUND_MEMORY = 64
"""Steps that `row_bound_share` looks back, roughly."""


class SeparateBudget:
    """Every running decode gets its one target row, prompts their promised rows, verify rows the rest.

    Attributes:
        row_bound_share: part of the last steps in which prompts were short of rows and not of seats: there a token
            sooner is worth no more than the row it would have taken.
    """

    def __init__(
        self,
        policy: StepPolicy,
        planner: VerificationPlanner,
        acceptance: AcceptanceTracker,
        costs: StepCosts | None,
    ) -> None:
        self.policy = policy
        self.planner = planner
        self.acceptance = acceptance
        self.costs = costs
        self.prompt_wait = PromptWaitTracker()
        self.row_bound_share = 0.0

    def fill(self, step: StepBuilder) -> None:
        """Grant rows until the step is full."""
        config = step.config
        decodes: list[Decode] = []
        prefills: list[Request] = []
        for request in step.running:
            if request.is_prefilling:
                prefills.append(request)
                continue
            decode = step.decode_of(request)
            if decode is not None:
                decodes.append(decode)

        if self._place_anchors(step, decodes):
            decodes = [decode for decode in decodes if decode[0].status is RequestStatus.RUNNING]
            prefills = [request for request in prefills if request.status is RequestStatus.RUNNING]
        drafts = [decode[3] for decode in decodes]

        draft_rows_left = config.draft_capacity
        rows_left = config.max_num_batched_tokens - len(decodes)
        carries = step.layout.carries_target_rows
        if carries:
            draft_rows_left -= len(decodes)
            rows_left = min(rows_left, draft_rows_left)

        survivals = functools.cache(lambda: self._survivals(decodes))
        candidates = self._candidates(step, decodes, prefills, rows_left, survivals)
        composition = self.policy.compose(candidates, self.costs, step.now)
        if composition.reason:
            step.reasons.append(composition.reason)
        if self.planner.reason and composition.num_verify_rows:
            step.reasons.append(self.planner.reason)
        num_drafts = candidates.num_drafts
        is_row_bound = (
            composition.num_prompt_rows
            and step.num_free_seats > 0
            and (composition.num_prompt_rows + composition.num_verify_rows >= rows_left)
        )
        self.row_bound_share += (bool(is_row_bound) - self.row_bound_share) / ROW_BOUND_MEMORY
        if composition.depth is not None:
            drafts = [min(count, composition.depth) for count in drafts]
        elif composition.num_verify_rows < num_drafts:
            known = None if self.costs is None else survivals()
            drafts = self.planner.distribute(drafts, known, composition.num_verify_rows, step.step)
        if composition.num_verify_rows < num_drafts:
            step.reasons.append(f"{num_drafts - composition.num_verify_rows} of {num_drafts} drafts yielded their rows")
        if carries:
            draft_rows_left -= sum(drafts)

        promised = 0
        if carries:  # prompts cost draft rows too: drafting decodes leave them the same part of D as of B
            part = -(-config.min_prefill_tokens * config.draft_capacity // config.max_num_batched_tokens)
            promised = min(composition.num_prompt_rows, part)
        draft_rows_left = promised + self._add_decodes(step, decodes, drafts, draft_rows_left - promised)
        self._add_prompts(step, prefills, composition.num_prompt_rows, draft_rows_left, composition.finishes_prompts)
        if step.prefills:
            num_finished = sum([entry.emits for entry in step.prefills])
            self.prompt_wait.ran(step.now, num_finished, finishes=composition.finishes_prompts)
        self.prompt_wait.planned(composition.tokens_per_decode)

    def _candidates(
        self,
        step: StepBuilder,
        decodes: list[Decode],
        prefills: list[Request],
        rows_left: int,
        survivals: Callable[[], Survivals],
    ) -> StepCandidates:
        """What the policy is asked; what only a cost rule needs is counted only when there are costs."""
        prompt_rows = sum(len(r.token_ids) - r.num_computed_tokens - r.in_flight_rows for r in prefills)
        num_prompts, num_ready, ready_rows = len(prefills), len(prefills), prompt_rows
        num_queued = len(step.waiting)
        seats = min(step.num_free_seats, num_queued) if not step.preempted else 0
        if seats:
            rows, admissible = step.prompts_waiting(max(rows_left - prompt_rows, 1))
            if admissible:
                num_ready += seats
                ready_rows += rows * seats // admissible
            if prompt_rows < rows_left:
                prompt_rows += rows
                num_prompts += admissible
        candidates = StepCandidates(
            len(decodes),
            sum([decode[3] for decode in decodes]),
            min(prompt_rows, rows_left),
            rows_left,
            step.config.min_prefill_tokens,
            step.num_free_seats,
        )
        candidates.prompt_wait = self.prompt_wait.update(num_ready, len(decodes), step.now)
        if self.costs is not None:
            candidates.num_kv_tokens = sum([decode[1] + 1 for decode in decodes])
            candidates.num_prompt_kv_tokens = prompt_rows + sum(r.num_computed_tokens for r in prefills)
            candidates.num_ready_rows = ready_rows
            mean = prompt_rows / num_prompts if num_prompts else 0.0
            candidates.next_prompt_rows = len(next(iter(step.waiting)).token_ids) if len(step.waiting) else mean
            ends = sorted([decode[2] for decode in decodes])
            users_return = candidates.prompt_wait.ready_per_end > 0.75
            candidates.tokens_to_ends = ends if users_return else ends[: num_queued - seats]
            candidates.num_emitting_prompts = num_prompts - (num_prompts > 0 and prompt_rows >= rows_left)
            candidates.num_draft_rows_per_request = step.draft_costs.extra_rows[step.drafting.most]
            requests, drafts = [decode[0] for decode in decodes], [decode[3] for decode in decodes]
            candidates.offer = lambda: self.planner.offer(self.acceptance.foreseen(requests, drafts, survivals))
        return candidates

    def _survivals(self, decodes: list[Decode]) -> Survivals:
        """Of every draft worth verifying."""
        return self.acceptance.survivals([decode[0] for decode in decodes], [decode[3] for decode in decodes])

    @staticmethod
    def _place_anchors(step: StepBuilder, decodes: list[Decode]) -> bool:
        """Make sure that every decode has a block for its anchor before anyone takes blocks for drafts.

        True when someone was preempted for it.
        """
        config = step.config
        most_per_request = 2 + (2 * config.num_speculative_tokens + 1) // config.block_size
        if step.kv.pool.num_free >= len(decodes) * most_per_request:
            return False  # enough for everybody's anchor, verify rows and lookahead
        for request, start, *_ in sorted(decodes, key=lambda decode: decode[0].queue_key):
            if request.status is RequestStatus.RUNNING:
                step.make_room(request, start + 1)
        return bool(step.preempted)

    def _add_decodes(self, step: StepBuilder, decodes: list[Decode], verify: list[int], draft_rows_left: int) -> int:
        """Enter the decodes; gives the draft rows left. Who drafts when D is short rotates with the steps."""
        extra_rows = step.draft_costs.extra_rows
        lookahead_slots = step.draft_costs.lookahead_slots
        block_size = step.kv.block_size
        carries = step.layout.carries_target_rows
        may_draft = self._may_draft(step, len(decodes), draft_rows_left)
        for index, (request, start, room, _) in enumerate(decodes):
            num_verify = verify[index]
            end = start + 1 + num_verify
            num_draft = step.drafts_wanted(request, end, room)
            if num_draft and (
                extra_rows[num_draft] > draft_rows_left or (may_draft is not None and index not in may_draft)
            ):
                num_draft = step.no_drafts(NoDrafts.DRAFT_CAPACITY)
            # Most steps need no new block: a bound that ignores max_model_len is asked first, it costs no call.
            if end + lookahead_slots[num_draft] > len(request.block_ids) * block_size and (
                step.kv.grow(request, step.tokens_needed(end, num_draft)) is None
            ):
                # Too few blocks for everything: drafting goes first, then verify rows; the anchor has its slot.
                if num_draft:
                    num_draft = step.no_drafts(NoDrafts.KV_BLOCKS)
                if step.kv.grow(request, end) is None:
                    num_verify = len(request.block_ids) * block_size - start - 1
            extra = extra_rows[num_draft]
            draft_rows_left -= extra
            step.add_decode(request, start, num_verify, num_draft, extra + 1 + num_verify if carries else extra)
        return draft_rows_left

    @staticmethod
    def _may_draft(step: StepBuilder, num_decodes: int, draft_rows_left: int) -> set[int] | None:
        """Which decodes may ask for draft rows, None for all."""
        per_request = step.draft_costs.extra_rows[-1]
        if not per_request or num_decodes * per_request <= draft_rows_left:
            return None
        fitting = max(draft_rows_left, 0) // per_request
        step.reasons.append(f"draft capacity holds {fitting} of {num_decodes} drafting requests")
        first = step.step * fitting
        return {(first + k) % num_decodes for k in range(fitting)}

    @staticmethod
    def _add_prompts(
        step: StepBuilder, prefills: list[Request], rows_left: int, draft_rows_left: int, finishes: bool
    ) -> None:
        """Enter chunks of running prompts, then admit waiting ones, within `rows_left` rows."""
        layout = step.layout
        queue = list(prefills)
        while rows_left > 0 and (draft_rows_left > 0 or not layout.carries_target_rows):
            if queue:
                request = queue.pop(0)
                if request.status is not RequestStatus.RUNNING:
                    continue  # preempted by a more urgent prompt in this very loop
            else:
                admitted = step.admit_next()
                if admitted is None:
                    return
                request = admitted
            start = request.num_computed_tokens + request.in_flight_rows
            num_rows = min(len(request.token_ids) - start - (not finishes), rows_left)
            if num_rows <= 0:
                if request in prefills:
                    continue
                num_rows = 1
            if layout.carries_target_rows:
                num_rows = min(num_rows, draft_rows_left)
            granted = step.grant_prompt(request, start, num_rows, draft_rows_left)
            if granted is None:
                continue
            num_rows, draft_rows = granted
            rows_left -= num_rows
            draft_rows_left -= draft_rows
