"""Why a recorded step holds what it holds: the run is replayed up to it, and scheduler and plan are read."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.config import SettingError, shown
from slipstream.lab.explain_requests import Before, RequestNote, StepView, notes_on
from slipstream.lab.observed import Observer
from slipstream.lab.plan_words import counted, listed, plan_line
from slipstream.lab.recorded_steps import recorded_steps
from slipstream.scheduler.costs import shape_of
from slipstream.simulation.recording import Planned, Recording
from slipstream.simulation.replay import Replay

_MOST_DIGITS = 12  # of a step


@dataclass(frozen=True, slots=True)
class StepExplanation:
    """One step in words.

    Attributes:
        heading: number, time and content. sentences: what holds for the whole step. requests: one note each.
    """

    heading: str
    sentences: list[str]
    requests: list[RequestNote]


def resolve_step(recording: Recording, text: str) -> int:
    """A step's number from a number or `last`. Raises SettingError naming the range."""
    last = recording.num_steps - 1
    if last < 0:
        raise SettingError("the recording holds no step that ran; there is nothing to explain")
    if text == "last":
        return last
    if not (text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) <= last):
        raise SettingError(f"--step takes a step from 0 to {last}, or last; got {shown(text)}")
    return int(text)


def explain_step(recording: Recording, step: int) -> StepExplanation:
    """Replay up to the step and say why it is as it is. `step`: from `resolve_step`."""
    observer = Observer()
    replay = Replay(recording, make_scheduler=observer.make)
    begin: float | None = None
    for event in recording.events:
        if isinstance(event, Planned):
            begin = event.now if begin is None else begin
            if event.plan.step == step and event.plan.requests:
                view = _plan(replay, event, observer)
                return _explanation(recording, view, event.now - begin)
        plan = replay.apply(event)
        if isinstance(event, Planned) and plan != event.plan:
            raise SettingError(
                f"step {event.plan.step} was recorded with another plan than this release makes; only steps up to it "
                "can be explained. slipstream replay shows both plans"
            )
    raise SettingError(f"step {step} is not in the recording")


def _plan(replay: Replay, event: Planned, observer: Observer) -> StepView:
    scheduler = replay.scheduler
    observer.decisions.clear()
    before = [Before.of(request) for request in scheduler.running]
    before += [Before.of(request) for request in scheduler.waiting]
    free = scheduler.kv.pool.num_free
    plan = replay.apply(event)
    assert plan is not None
    return StepView(
        plan=plan,
        recorded=event.plan,
        now=event.now,
        scheduler=scheduler,
        before={entry.request.request_id: entry for entry in before},
        free_before=free,
        decisions=observer.decisions,
    )


def _explanation(recording: Recording, view: StepView, seconds: float) -> StepExplanation:
    plan = view.plan
    heading = f"Step {plan.step} of 0 to {recording.num_steps - 1}, {seconds:.3f} s after the first: {plan_line(plan)}."
    sentences = []
    if plan != view.recorded:
        sentences.append(
            "This release plans the step differently from how it was recorded; what follows is this release's plan."
        )
    sentences += _budget(view)
    sentences += _rules(view)
    sentences += _drafter(view)
    sentences += _memory(view)
    sentences += _cost(recording, view)
    return StepExplanation(heading, sentences, notes_on(view))


def _budget(view: StepView) -> list[str]:
    """Where the target's rows went."""
    plan, config = view.plan, view.scheduler.config
    num_decodes = view.num_decodes
    budget = config.max_num_batched_tokens
    used = [
        f"{num_decodes} went to anchors",
        f"{plan.num_verify_rows} to drafts that are verified",
        f"{plan.num_prefill_rows} to prompts",
    ]
    left = budget - plan.num_target_rows
    sentences = [
        f"Rows: the step may hold B = {budget}. {listed(used)}; {left} stayed free."
        + (" An anchor is the one row that every running decode gets before anyone gets more." if num_decodes else "")
    ]
    if config.draft_budget == "shared":
        slots = view.scheduler.layout.reserved_slots(config.num_speculative_tokens)
        sentences.append(
            f"Budget: shared. Each of the {counted(len(plan.requests), 'request')} also has {slots} of the B rows "
            f"reserved, {slots * len(plan.requests)} in all; scheduling stops when {slots} or fewer are left."
        )
    return sentences


def _rules(view: StepView) -> list[str]:
    """Composition, verification and the promise to prompts."""
    decisions, config = view.decisions, view.scheduler.config
    sentences = []
    candidates, composition = decisions.candidates, decisions.composition
    if candidates is not None and composition is not None:
        if candidates.num_prompt_rows or candidates.num_drafts:
            sentences.append(
                f"After the anchors {candidates.num_rows_left} rows were left. Prompts could use "
                f"{candidates.num_prompt_rows} of them, and {counted(candidates.num_drafts, 'draft')} waited to be "
                f"verified; they got {composition.num_prompt_rows} and {composition.num_verify_rows}."
            )
        promised = min(config.min_prefill_tokens, candidates.num_prompt_rows, candidates.num_rows_left)
        short = candidates.num_prompt_rows + candidates.num_drafts > candidates.num_rows_left
        if short and promised and view.scheduler.costs is None:
            sentences.append(
                "There were not enough for both. Prompts are promised min_prefill_tokens = "
                f"{config.min_prefill_tokens}; drafts come next; prompts take what drafts leave."
            )
        if composition.reason:
            sentences.append(f"The rule in charge (--composition {config.composition}) says: {composition.reason}.")
        if composition.depth is not None:
            sentences.append(f"Every decode verifies its first {counted(composition.depth, 'draft')}: one K per step.")
        yielded = candidates.num_drafts - composition.num_verify_rows
        if yielded > 0 and decisions.drafts is not None:
            sentences.append(_yielded(view, yielded))
    if view.scheduler.costs is None and config.draft_budget == "separate":
        sentences.append(
            "There is no cost table: prompts run as soon as they can, and every draft that fits is verified."
        )
    return sentences


def _yielded(view: StepView, count: int) -> str:
    """Why drafts at hand are not verified, and by what rule the others were chosen."""
    drafts = f"{counted(count, 'draft')} {'is' if count == 1 else 'are'} not verified"
    by = "by their chances of being accepted" if view.decisions.survivals is not None else "turn by turn"
    if view.scheduler.costs is not None and view.plan.num_target_rows < view.scheduler.config.max_num_batched_tokens:
        return f"{drafts} though rows are free: that would take more time than it is worth. Chosen {by}."
    return f"{drafts}: they gave up their rows. The others were chosen {by}."


def _drafter(view: StepView) -> list[str]:
    plan, config = view.plan, view.scheduler.config
    if not config.num_speculative_tokens:
        return ["Nobody drafts: speculation is off."]
    num_drafting = sum(bool(entry.num_draft_tokens) for entry in plan.requests)
    sentence = f"Drafter: {num_drafting} of {counted(len(plan.requests), 'request')} may draft after this step"
    if plan.num_draft_query_rows:
        sentence += f", in {plan.num_draft_query_rows} of D = {config.draft_capacity} draft rows"
    sentences = [sentence + "."]
    if view.draft_capacity_was_short:
        sentences.append("D was too small for all of them, so they take turns.")
    if view.decisions.drafting is not None and view.decisions.drafting.reason:
        sentences.append(f"The drafting rule says: {view.decisions.drafting.reason}.")
    return sentences


def _memory(view: StepView) -> list[str]:
    pool = view.scheduler.kv.pool
    sentences = [
        f"KV: {view.free_before} of {pool.num_blocks} blocks were free before the step was planned, "
        f"{pool.num_free} after."
    ]
    for before in view.preempted:
        sentences.append(
            f"{before.request.request_id} was preempted: blocks ran out and it was the least urgent of those running. "
            "Its blocks are free for others; it waits at its old place and is computed anew."
        )
    return sentences


def _cost(recording: Recording, view: StepView) -> list[str]:
    plan, costs = view.plan, view.scheduler.costs
    how = f"It runs in {plan.mode.replace('_', ' ')} mode"
    if plan.num_padded_rows != plan.num_target_rows:
        how += f", padded from {plan.num_target_rows} to {plan.num_padded_rows} rows"
    if plan.graph_key is not None:
        how += f" (graph {plan.graph_key})"
    sentences = [how + "."]
    if costs is not None:
        num_drafting = sum(bool(entry.num_draft_tokens) for entry in plan.requests)
        target = costs.target_ms(shape_of(plan))
        draft = costs.draft_ms(num_drafting, plan.num_draft_query_rows)
        sentences.append(
            f"Predicted by cost table version {costs.version}: {target:.2f} ms and {draft:.2f} ms for the drafter."
        )
    measured = next((step for step in recorded_steps(recording) if step.step == plan.step), None)
    if measured is None:
        sentences.append("Its results are not in the recording.")
        return sentences
    result = measured.committed.result
    sentences.append(
        f"Measured: {result.target_ms:.2f} ms for the target's pass, {result.draft_ms:.2f} ms for the drafter, "
        f"{1e3 * measured.duration_s:.2f} ms for the whole cycle."
    )
    verified = sum(r.num_verified for r in result.results)
    accepted = sum(r.num_accepted for r in result.results)
    emitted = sum(len(r.token_ids) for r in result.results)
    outcome = f"It gave {counted(emitted, 'token')}"
    outcome += f"; {accepted} of {counted(verified, 'verified draft')} were accepted" if verified else ""
    ends = [f"{name} ended ({verdict.finish_reason})" for name, verdict in measured.committed.ends.items()]
    sentences.append(outcome + (f"; {listed(ends)}." if ends else "."))
    return sentences
