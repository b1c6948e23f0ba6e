"""Plans in words: what a step holds, and where two plans of the same step differ."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.scheduler.protocol import NewRequest, ScheduledRequest, StepPlan


def counted(count: int, what: str, plural: str | None = None) -> str:
    """`1 draft`, `2 drafts`, `no drafts`."""
    return f"{count or 'no'} {what if count == 1 else plural or what + 's'}"


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = list(words) or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last


def spans(numbers: Iterable[int]) -> str:
    """`3, 7-9`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "none"


def plan_line(plan: StepPlan) -> str:
    """What the step holds, in one line."""
    if not plan.requests:
        return "an empty step"
    num_prompts = sum(entry.is_prefill for entry in plan.requests)
    num_decodes = len(plan.requests) - num_prompts
    num_drafting = sum(bool(entry.num_draft_tokens) for entry in plan.requests)
    parts = []
    if num_decodes:
        parts += [counted(num_decodes, "anchor"), counted(plan.num_verify_rows, "verify row")]
    if num_prompts:
        parts.append(f"{counted(plan.num_prefill_rows, 'prompt row')} of {counted(num_prompts, 'prompt')}")
    padding = f" padded to {plan.num_padded_rows}" if plan.num_padded_rows != plan.num_target_rows else ""
    drafting = f"{counted(num_drafting, 'request')} then {'drafts' if num_drafting == 1 else 'draft'}"
    return f"{plan.kind} step of {counted(plan.num_target_rows, 'row')}{padding}: {listed(parts)}; {drafting}"


def entry_line(entry: ScheduledRequest | None) -> str:
    """One request's share."""
    if entry is None:
        return "no rows"
    if entry.is_prefill:
        first = entry.num_computed_tokens
        rows = f"prompt rows {first} to {first + entry.num_target_rows - 1}"
        rows += ", then emits" if entry.emits else ""
    else:
        rows = f"1 + {entry.num_verify_rows} rows"
    drafts = f", drafts {entry.num_draft_tokens}" if entry.num_draft_tokens else ""
    blocks = f", new blocks {spans(entry.new_block_ids)}" if entry.new_block_ids else ""
    return rows + drafts + blocks


def differences(recorded: StepPlan, replayed: StepPlan) -> list[tuple[str, str, str]]:
    """(what, recorded, replayed) of everything that is not equal."""
    rows: list[tuple[str, str, str]] = []

    def note(what: str, old: object, new: object) -> None:
        if old != new:
            rows.append((what, str(old), str(new)))

    note("step", recorded.step, replayed.step)
    note("holds", plan_line(recorded), plan_line(replayed))
    old, new = ({entry.request_id: entry for entry in plan.requests} for plan in (recorded, replayed))
    for request_id in dict.fromkeys((*old, *new)):
        ours, theirs = old.get(request_id), new.get(request_id)
        if ours != theirs:
            words = entry_line(ours), entry_line(theirs)
            rows.append((request_id, *(words if words[0] != words[1] else (str(ours), str(theirs)))))
    note("order of requests", _order(old, new), _order(new, old))
    note("admitted", _admitted(recorded.new_requests), _admitted(replayed.new_requests))
    note("released", listed(recorded.released_request_ids), listed(replayed.released_request_ids))
    note("mode", recorded.mode, replayed.mode)
    note("graph", recorded.graph_key, replayed.graph_key)
    note("cost table version", recorded.costs_version, replayed.costs_version)
    note("reason", recorded.reason, replayed.reason)
    if not rows:
        note("plan", recorded, replayed)
    return rows


def _order(plan: Iterable[str], other: Iterable[str]) -> str:
    """The requests that both hold, in this one's order."""
    both = set(other)
    return listed(request_id for request_id in plan if request_id in both)


def _admitted(new: Iterable[NewRequest]) -> str:
    return listed(f"{request.request_id} ({len(request.token_ids)} tokens)" for request in new)
