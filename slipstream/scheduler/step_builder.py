"""StepBuilder: one step under construction. It turns granted rows into plan entries, KV blocks and bookkeeping;
which rows are granted is the business of the budget rules (separate.py, shared.py)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from slipstream.config import SchedulerConfig
from slipstream.kv.manager import KVManager
from slipstream.request import Request, RequestStatus
from slipstream.scheduler.drafting import DraftingDecision
from slipstream.scheduler.layouts import DraftCostTable, DraftLayout
from slipstream.scheduler.protocol import NewRequest, ScheduledRequest
from slipstream.scheduler.queue import WaitingQueue
from slipstream.scheduler.statistics import NoDrafts

_KEY = attrgetter("queue_key")


Decode = tuple[Request, int, int, int]
"""A running decode, the position of its anchor, the tokens it may still emit, and its drafts worth verifying."""


class StepBuilder:
    """Collects one step's entries. Lives for one call of `Scheduler.schedule`.

    Attributes:
        decodes, prefills: entries so far.
        new_requests: descriptions the executor needs.
        preempted: requests that lost their blocks in this step.
        without_drafts: requests that could draft after this step and will not, by reason.
        epochs: source of numbers for requests that start over.
    """

    def __init__(
        self,
        *,
        step: int,
        now: float,
        config: SchedulerConfig,
        layout: DraftLayout,
        kv: KVManager,
        running: list[Request],
        waiting: WaitingQueue,
        drafting: DraftingDecision,
        draft_costs: DraftCostTable,
        next_epoch: int,
    ) -> None:
        self.step = step
        self.now = now
        self.config = config
        self.layout = layout
        self.kv = kv
        self.running = running
        self.waiting = waiting
        self.drafting = drafting
        self.draft_costs = draft_costs
        self.next_epoch = next_epoch
        self.decodes: list[ScheduledRequest] = []
        self.prefills: list[ScheduledRequest] = []
        self.new_requests: list[NewRequest] = []
        self.preempted: list[Request] = []
        self.without_drafts: dict[NoDrafts, int] = {}
        self.reasons: list[str] = []

    # -- what a request wants -------------------------------------------------------------------------------------

    def decode_of(self, request: Request) -> Decode | None:
        """What a decoding request could do now; None where a result in flight is certain to end it, or leaves no
        position to run at (lag 1). Drafts that would reach past its end are not worth verifying, and only those of the
        last step are used: older ones mean that a step went by without the request."""
        end = request.max_total_tokens
        start = request.num_computed_tokens + request.in_flight_rows
        room = end - len(request.token_ids) - request.in_flight_emits
        if room <= 0 or start >= end:
            return None
        drafts = request.num_draft_tokens
        if drafts:
            if request.draft_handle != self.step - 1:
                drafts = 0
            elif drafts >= room or start + drafts >= end:
                drafts = min(room, end - start) - 1
        return request, start, room, drafts

    def drafts_wanted(self, request: Request, end_position: int, room: int) -> int:
        """Drafts the request should make after emitting in this step, whose rows end before `end_position`; 0 where
        they could not be used: one token is certain to come, and a draft that would be the last saves nothing."""
        most = self.config.num_speculative_tokens
        allowed = request.max_draft_tokens
        if allowed is not None and allowed < most:
            most = allowed
        if room < most + 2:
            most = room - 2
        if most <= 0:
            return 0
        chosen = self.drafting.num_draft_tokens(request.request_id)
        if chosen <= 0:
            return self.no_drafts(self.drafting.cause)
        if chosen < most:
            most = chosen
        limit = self.config.draft_max_model_len
        if limit is not None and end_position + most >= limit:
            return self.no_drafts(NoDrafts.POSITION_LIMIT)
        return most

    def no_drafts(self, cause: NoDrafts | None) -> int:
        """Note that a request will not draft though it could; gives 0."""
        if cause is not None:
            self.without_drafts[cause] = self.without_drafts.get(cause, 0) + 1
        return 0

    def tokens_needed(self, end_position: int, num_draft_tokens: int) -> int:
        """Tokens the block table must cover: the target's rows, and the drafter's slots from the new anchor on."""
        return min(end_position + self.draft_costs.lookahead_slots[num_draft_tokens], self.config.max_model_len)

    # -- blocks ---------------------------------------------------------------------------------------------------

    def make_room(self, request: Request, num_tokens: int) -> bool:
        """Grow the request's table, taking blocks from the least urgent running requests that this step does not
        hold yet. False when the request itself is the least urgent of them: then it was preempted."""
        while self.kv.grow(request, num_tokens) is None:
            entered = {entry.request_id for entry in (*self.decodes, *self.prefills)}
            victim = max((r for r in self.running if r.request_id not in entered), key=_KEY)
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def preempt(self, request: Request) -> None:
        """Free the request's blocks; it will be recomputed. Its results in flight are stale from now on."""
        self.running.remove(request)
        self.kv.free(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        request.num_planned_blocks = 0
        request.in_flight_rows = 0
        request.in_flight_emits = 0
        request.draft_handle = -1
        request.num_draft_tokens = 0
        request.draft_confidences = None
        request.epoch = self.next_epoch
        self.next_epoch += 1
        request.num_preemptions += 1
        self.waiting.put_back(request)
        self.preempted.append(request)

    # -- admission ------------------------------------------------------------------------------------------------

    @property
    def num_free_seats(self) -> int:
        return self.config.max_num_seqs - len(self.running)

    def prompts_waiting(self, most: int) -> tuple[int, int]:
        """(rows, prompts) of the first waiting requests that could run now, given seats and blocks; rows are counted
        up to `most`, prompts as far as those rows reach."""
        rows = prompts = 0
        free = self.kv.pool.num_free
        held_back = len(self.running)
        for seat, request in enumerate(self.waiting):
            if seat >= self.num_free_seats or rows >= most:
                break
            cached = self.kv.cached_blocks(request)
            free -= self._blocks_to_admit(request, cached)
            if free < held_back:
                break
            held_back += 1
            rows += len(request.token_ids) - len(cached) * self.config.block_size
            prompts += 1
        return rows, prompts

    def admit_next(self) -> Request | None:
        """Give the most urgent waiting request a seat and its cached blocks; None where seat or blocks are missing.

        Its whole prompt must fit, and one block must remain for every running request: else it would be admitted only
        to be preempted.
        """
        if not len(self.waiting) or self.num_free_seats <= 0 or self.preempted:
            return None
        request = next(iter(self.waiting))
        cached = self.kv.cached_blocks(request)
        if self.kv.pool.num_free - self._blocks_to_admit(request, cached) < len(self.running):
            return None
        self.waiting.pop_first()
        self.kv.attach_cached(request, cached)
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self.now
            request.num_cached_tokens = request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        request.is_prefilling = True
        self.running.append(request)
        self.new_requests.append(
            NewRequest(
                request.request_id,
                request.epoch,
                list(request.token_ids),
                request.num_prompt_tokens,
                request.sampling,
                request.seed,
                request.choice_index,
                request.max_total_tokens,
                request.stop_token_ids,
            )
        )
        return request

    def _blocks_to_admit(self, request: Request, cached: list[int]) -> int:
        """Free blocks that admitting the request will use up for its known tokens."""
        missing = self.kv.blocks_for(len(request.token_ids)) - len(cached)
        return missing + self.kv.pool.num_free_among(cached)

    # -- entries --------------------------------------------------------------------------------------------------

    def add_decode(self, request: Request, start: int, num_verify: int, num_draft: int, draft_rows: int) -> None:
        """Enter a decode: its anchor and `num_verify` drafts."""
        known, blocks = request.num_planned_blocks, request.block_ids
        self.decodes.append(
            ScheduledRequest(
                request.request_id,
                request.epoch,
                start,
                1 + num_verify,
                num_verify,
                request.draft_handle if num_verify else -1,
                False,
                True,
                num_draft,
                draft_rows,
                () if len(blocks) == known else self._unplanned_blocks(request),
            )
        )
        request.in_flight_rows += 1 + num_verify
        request.in_flight_emits += 1
        request.draft_handle = self.step if num_draft else -1
        request.num_draft_tokens = num_draft  # an upper bound until the step is committed
        request.draft_confidences = None

    def add_prefill(self, request: Request, start: int, num_rows: int, num_draft: int, draft_rows: int) -> None:
        """Enter a chunk of known tokens; the last chunk emits and may draft."""
        emits = start + num_rows == len(request.token_ids)
        self.prefills.append(
            ScheduledRequest(
                request.request_id,
                request.epoch,
                start,
                num_rows,
                0,
                -1,
                True,
                emits,
                num_draft,
                draft_rows,
                self._unplanned_blocks(request),
            )
        )
        request.in_flight_rows += num_rows
        request.in_flight_emits += int(emits)
        request.is_prefilling = not emits
        request.draft_handle = self.step if num_draft else -1
        request.num_draft_tokens = num_draft

    def grant_prompt(self, request: Request, start: int, num_rows: int, draft_rows_left: int) -> tuple[int, int] | None:
        """Enter a chunk of at most `num_rows` rows as far as blocks reach.

        Gives (target rows, draft query rows) used, or None when the request had to give way. Drafting is dropped
        before rows are: `draft_rows_left` always holds the rows a layout carries.
        """
        kv, layout = self.kv, self.layout
        num_rows = min(num_rows, self.config.long_prefill_token_threshold or num_rows)
        num_draft = 0
        if start + num_rows == len(request.token_ids):
            room = request.max_total_tokens - len(request.token_ids)
            num_draft = self.drafts_wanted(request, start + num_rows, room)
        if num_draft and layout.draft_query_rows(num_rows, num_draft) > draft_rows_left:
            num_draft = self.no_drafts(NoDrafts.DRAFT_CAPACITY)
        if kv.grow(request, self.tokens_needed(start + num_rows, num_draft)) is None:
            if num_draft:
                num_draft = self.no_drafts(NoDrafts.KV_BLOCKS)
            reachable = (len(request.block_ids) + kv.pool.num_free) * kv.block_size - start
            if reachable <= 0 and not self.make_room(request, start + 1):
                return None
            num_rows = min(num_rows, max(reachable, len(request.block_ids) * kv.block_size - start))
            kv.grow(request, start + num_rows)
        draft_rows = layout.draft_query_rows(num_rows, num_draft)
        self.add_prefill(request, start, num_rows, num_draft, draft_rows)
        return num_rows, draft_rows

    @staticmethod
    def _unplanned_blocks(request: Request) -> Sequence[int]:
        known, blocks = request.num_planned_blocks, request.block_ids
        request.num_planned_blocks = len(blocks)
        return blocks[known:]
