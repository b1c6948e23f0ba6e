"""Why one request got what it got in a step: its state before, its entry in the plan, and the limit that bound it."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.lab.observed import Decisions
from slipstream.lab.plan_words import counted
from slipstream.request import Request, RequestStatus
from slipstream.scheduler.protocol import ScheduledRequest, StepPlan
from slipstream.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Before:
    """A request as it was before the step was planned."""

    request: Request
    was_running: bool
    is_prefilling: bool
    num_tokens: int
    start: int
    in_flight_emits: int
    draft_handle: int
    num_drafts: int
    num_blocks: int

    @classmethod
    def of(cls, request: Request) -> Before:
        return cls(
            request,
            request.status is RequestStatus.RUNNING,
            request.is_prefilling,
            len(request.token_ids),
            request.num_computed_tokens + request.in_flight_rows,
            request.in_flight_emits,
            request.draft_handle,
            request.num_draft_tokens,
            len(request.block_ids),
        )

    @property
    def room(self) -> int:
        """Tokens it may still emit, results in flight counted as one each."""
        return self.request.max_total_tokens - self.num_tokens - self.in_flight_emits


@dataclass(frozen=True, slots=True)
class RequestNote:
    """A line of the table: what the request was, what it got, and why."""

    request_id: str
    state: str
    got: str
    why: str


@dataclass(frozen=True, slots=True)
class StepView:
    """A planned step with what led to it; `scheduler` is as the plan left it."""

    plan: StepPlan
    recorded: StepPlan
    now: float
    scheduler: Scheduler
    before: dict[str, Before]
    free_before: int
    decisions: Decisions

    @property
    def num_decodes(self) -> int:
        return sum(not entry.is_prefill for entry in self.plan.requests)

    @property
    def preempted(self) -> list[Before]:
        return [b for b in self.before.values() if b.was_running and b.request.status is RequestStatus.WAITING]

    @property
    def draft_capacity_was_short(self) -> bool:
        return "draft capacity holds" in self.plan.reason


def notes_on(view: StepView) -> list[RequestNote]:
    """Those in the plan, in its order, then running ones without rows, then those that wait, most urgent first."""
    notes = [_decode(view, e) if not e.is_prefill else _prompt(view, e) for e in view.plan.requests]
    planned = {entry.request_id for entry in view.plan.requests}
    notes += [_idle(view, request) for request in view.scheduler.running if request.request_id not in planned]
    notes += [_waiting(view, place, request) for place, request in enumerate(view.scheduler.waiting)]
    return notes


def _decode(view: StepView, entry: ScheduledRequest) -> RequestNote:
    before = view.before[entry.request_id]
    request = before.request
    end = entry.num_computed_tokens + entry.num_target_rows
    state = f"decoding, {counted(before.num_tokens - request.num_prompt_tokens, 'token')} out"
    got = f"1 anchor + {counted(entry.num_verify_rows, 'draft')}" + _drafts_after(entry)
    why = [
        _verified(view, entry, before),
        _next_drafts(view, entry, before, end),
    ]
    return RequestNote(entry.request_id, state, got, " ".join(filter(None, why)))


def _verified(view: StepView, entry: ScheduledRequest, before: Before) -> str:
    """Why so many drafts are verified."""
    config = view.scheduler.config
    verified = entry.num_verify_rows
    if not config.num_speculative_tokens:
        return "No speculation, so its anchor is all it needs."
    at_hand = before.num_drafts
    if before.draft_handle != view.plan.step - 1:
        at_hand = 0
    if not at_hand:
        if before.num_drafts and before.draft_handle >= 0:
            return "A step went by without it, so its drafts are no longer used."
        if before.draft_handle == view.plan.step - 1 and before.draft_handle >= 0:
            return "No drafts at hand: the drafter found none in the last step."
        return "No drafts at hand: it was not to draft in the last step."
    end = before.request.max_total_tokens
    useful = min(at_hand, before.room - 1, end - before.start - 1)
    bound = " at most" if before.in_flight_emits else ""
    words = f"{counted(at_hand, 'draft')}{bound} at hand"
    if useful < at_hand:
        words += f", of which {max(useful, 0)} can be of use before its end at {end} tokens"
    if verified >= useful:
        return words + (", all verified." if verified and useful == at_hand else ".")
    composition = view.decisions.composition
    if config.draft_budget == "shared":
        return f"{words}; rows ran out after {verified}, those reserved for drafts counted."
    if composition is not None and composition.depth is not None and verified == composition.depth:
        return f"{words}; every decode verifies {composition.depth} in this step."
    if view.decisions.drafts is not None:
        how = "by value" if view.decisions.survivals is not None else "in turn"
        return f"{words}; {verified} verified, as rows were given {how}{_chance(view, entry)}."
    return f"{words}; {verified} verified, since KV blocks for more were not free."


def _chance(view: StepView, entry: ScheduledRequest) -> str:
    """The chance of the first draft that was left out."""
    if view.decisions.survivals is None:
        return ""
    decodes = [e.request_id for e in view.plan.requests if not e.is_prefill]
    place = decodes.index(entry.request_id)
    if place >= len(view.decisions.survivals):
        return ""
    chances = view.decisions.survivals[place]
    if entry.num_verify_rows >= len(chances):
        return ""
    return f" (the next one is accepted with a chance of {float(chances[entry.num_verify_rows]):.0%})"


def _drafts_after(entry: ScheduledRequest) -> str:
    return f", then drafts {entry.num_draft_tokens}" if entry.num_draft_tokens else ""


def _next_drafts(view: StepView, entry: ScheduledRequest, before: Before, end_position: int) -> str:
    """Why it drafts fewer than K after this step; nothing where it drafts K."""
    config = view.scheduler.config
    most, drafts = config.num_speculative_tokens, entry.num_draft_tokens
    if drafts >= most or not most:
        return ""
    room = before.room
    if room <= 1:
        return "It does not draft: this step's token is its last."
    decision = view.decisions.drafting
    chosen = most if decision is None else decision.num_draft_tokens(entry.request_id)
    useful = max(room - 2, 0)
    if drafts == min(useful, chosen) and useful < chosen:
        after = counted(room - 1, "token")
        what = drafts or "nothing"
        return f"It drafts {what}: {after} may follow this step's first, and a draft for the last saves nothing."
    limit = config.draft_max_model_len
    if limit is not None and end_position + min(chosen, useful) >= limit:
        return f"It does not draft: its drafts would pass draft_max_model_len = {limit}."
    if drafts == chosen:
        return f"It drafts {drafts} of K = {most}: the drafting rule chose that."
    if view.draft_capacity_was_short:
        return "It does not draft: D is short, and it is not its turn."
    return "It does not draft: KV blocks or draft rows for it were not free."


def _prompt(view: StepView, entry: ScheduledRequest) -> RequestNote:
    before = view.before[entry.request_id]
    request = before.request
    config = view.scheduler.config
    total = before.num_tokens
    end = entry.num_computed_tokens + entry.num_target_rows
    state = "prompt" if total == request.num_prompt_tokens else "computed anew"
    state += f", {entry.num_computed_tokens} of {total} tokens done"
    why = []
    if not before.was_running:
        why.append("It got a free seat, and there were blocks for its whole prompt.")
        if entry.num_computed_tokens:
            why.append(f"{entry.num_computed_tokens} tokens came from the prefix cache.")
    if end == total:
        why.append("All that was left of it ran.")
        why.append(_next_drafts(view, entry, before, end))
    else:
        why.append(_chunk_limit(view, entry, end, config.long_prefill_token_threshold))
    got = f"{entry.num_target_rows} prompt rows" + _drafts_after(entry)
    return RequestNote(entry.request_id, state, got, " ".join(filter(None, why)))


def _chunk_limit(view: StepView, entry: ScheduledRequest, end: int, threshold: int) -> str:
    """What bound a chunk that is not the last."""
    config, plan = view.scheduler.config, view.plan
    request = view.before[entry.request_id].request
    if threshold and entry.num_target_rows == threshold:
        return f"A prompt gets at most long_prefill_token_threshold = {threshold} rows in a step."
    if end == len(request.block_ids) * config.block_size and not view.scheduler.kv.pool.num_free:
        return "It ran as far as KV blocks were free."
    composition, candidates = view.decisions.composition, view.decisions.candidates
    if composition is not None and candidates is not None and plan.num_prefill_rows == composition.num_prompt_rows:
        if composition.num_prompt_rows == min(candidates.num_prompt_rows, candidates.num_rows_left):
            return "The step's rows ended here."
        return f"The {composition.num_prompt_rows} rows that prompts got in this step ended here."
    if view.scheduler.layout.carries_target_rows and plan.num_draft_query_rows >= config.draft_capacity:
        return f"The drafter's pass carries these rows too, and D = {config.draft_capacity} was used up."
    return "The step's rows ended here."


def _idle(view: StepView, request: Request) -> RequestNote:
    """It has a seat and got nothing."""
    before = view.before.get(request.request_id)
    if before is not None and not before.is_prefilling:
        if before.room <= 0 or before.start >= request.max_total_tokens:
            why = "A result in flight is certain to end it."
        else:
            why = "The step's rows ran out before its turn."
        return RequestNote(request.request_id, "decoding", "nothing", why)
    composition = view.decisions.composition
    why = "The step's rows ran out before its turn."
    if composition is not None and not composition.num_prompt_rows:
        why = "Prompts were held back in this step" + (f": {composition.reason}." if composition.reason else ".")
    return RequestNote(request.request_id, "prompt, seated", "nothing", why)


def _waiting(view: StepView, place: int, request: Request) -> RequestNote:
    scheduler = view.scheduler
    config, kv = scheduler.config, scheduler.kv
    waited = max(view.now - request.arrival_time, 0.0)
    state = f"waiting {waited:.2f} s, place {place + 1}"
    before = view.before.get(request.request_id)
    composition = view.decisions.composition
    if before is not None and before.was_running:
        why = "Preempted in this step; it is computed anew when it gets a seat."
    elif len(scheduler.running) >= config.max_num_seqs:
        why = f"No seat is free: {len(scheduler.running)} of S = {config.max_num_seqs} run."
    elif view.preempted:
        why = "Nobody is admitted in a step that had to preempt."
    elif place:
        why = "Those before it in the queue come first."
    elif (
        composition is not None
        and not composition.num_prompt_rows
        and view.decisions.candidates is not None
        and (view.decisions.candidates.num_prompt_rows)
    ):
        why = "Prompts were held back in this step" + (f": {composition.reason}." if composition.reason else ".")
    else:
        cached = kv.cached_blocks(request)
        needed = kv.blocks_for(len(request.token_ids)) - len(cached) + kv.pool.num_free_among(cached)
        kept = len(scheduler.running)
        if kv.pool.num_free - needed < kept:
            why = (
                f"Too few KV blocks: it needs {needed}, {kv.pool.num_free} are free, and {kept} are kept, one for each "
                "running request."
            )
        else:
            why = "The step's rows were used up before its turn."
    return RequestNote(request.request_id, state, "nothing", why)
