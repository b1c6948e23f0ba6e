"""Reads recordings back, also those that were cut off (format: recording.py and docs/replay.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.config import SettingError, shown
from slipstream.request import FinishReason
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.cost_table_json import cost_table_from_json
from slipstream.scheduler.protocol import (
    RequestResult,
    ScheduledRequest,
    StepKind,
    StepMode,
    StepPlan,
    StepResult,
    StopVerdict,
)
from slipstream.simulation.input_files import check_regular
from slipstream.simulation.recording import (
    PLACEHOLDER,
    PLAN_FIELDS,
    REQUEST_COLUMNS,
    RESULT_FIELDS,
    Aborted,
    Added,
    CacheForgotten,
    Committed,
    CostsSet,
    Header,
    Marked,
    Planned,
    RecordedEvent,
    Recording,
    placeholder_request,
)
from slipstream.simulation.recording_check import ImpossibleError, RecordingCheck
from slipstream.simulation.recording_header import header_from_json
from slipstream.simulation.recording_lines import recording_lines

_BLOCKS = REQUEST_COLUMNS.index("new_block_ids")
_RESULT_COUNTS = ("num_target_rows", "num_draft_query_rows", "num_skipped_drafts")


def read_recording(path: Path) -> Recording:
    """Read a recording; one that was cut off (a crash, a full disk) is read as far as it goes.

    Raises:
        SettingError: no such file, not a recording, of a format this release does not know, or damaged; names the line.
    """
    check_regular(path, "recording")
    reader: _Events | None = None
    lines = enumerate(recording_lines(path), start=1)
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if reader is None:
                raise SettingError(f"{path} is not a recording: its first line is no JSON") from None
            if next(lines, None) is None:
                break  # the last line was cut
            raise SettingError(f"{path}: line {number} is damaged: no JSON, and others follow") from None
        if reader is None:
            reader = _Events(header_from_json(path, value))
            continue
        try:
            reader.take(value)
        except (SettingError, ImpossibleError) as error:
            raise SettingError(f"{path}: line {number} is damaged: {error}") from None
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise SettingError(f"{path}: line {number} is damaged ({reason}): {shown(value)}") from None
    if reader is None:
        raise SettingError(f"{path} is empty; a recording begins with a header")
    return Recording(reader.header, reader.events, not reader.has_ended)


class _Events:
    """Turns lines into events, each checked against those before it."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.events: list[RecordedEvent] = []
        self.has_ended = False
        self._check = RecordingCheck(header.config)
        self._plans: dict[int, StepPlan] = {}

    def take(self, value: dict[str, Any]) -> None:
        """Read a line. Raises ImpossibleError, or any error of a broken line."""
        if self.has_ended:
            raise ImpossibleError("lines follow the end; did two runs record to one file?")
        match value.pop("event"):
            case "end":
                self.has_ended = True
            case "plan":
                self._check.plan_rows(value)
                planned = Planned(value["now"], _plan(value))
                self._check.planned(planned)
                self._plans[planned.plan.step] = planned.plan
                self.events.append(planned)
            case "commit":
                self.events.append(self._committed(value))
            case "add":
                added = _added(value)
                self._check.added(added)
                self.events.append(added)
            case "abort":
                aborted = Aborted(**value)
                self._check.aborted(aborted)
                self.events.append(aborted)
            case "costs":
                self.events.append(CostsSet(_costs(value["costs"])))
            case "forget_cached":
                self.events.append(CacheForgotten())
            case "mark":
                marked = Marked(**value)
                self._check.marked(marked)
                self.events.append(marked)
            case name:
                raise ImpossibleError(f"the event {shown(name)} is not known")

    def _committed(self, value: dict[str, Any]) -> Committed:
        step = value["step"]
        if type(step) is not int or step not in self._plans:
            raise ImpossibleError(f"step {shown(step)} has results, and no plan")
        plan = self._plans.pop(step)
        self._check.result_rows(plan, value)
        event = _committed(value, plan)
        result = event.result
        self._check.committed(
            list(event.ends),
            {"at": event.at, "target_ms": result.target_ms, "draft_ms": result.draft_ms},
            {name: getattr(result, name) for name in _RESULT_COUNTS},
        )
        return event


def _costs(value: Any) -> CostTable | None:
    return None if value is None else cost_table_from_json(value)


def _added(value: dict[str, Any]) -> Added:
    hashes = tuple(map(bytes.fromhex, value.pop("block_hashes")))
    token_ids = value.pop("prompt_token_ids", None)
    for name in ("sampling", "seed"):
        value.pop(name, None)
    return Added(**value, block_hashes=hashes, prompt_token_ids=None if token_ids is None else tuple(token_ids))


def _plan(value: Mapping[str, Any]) -> StepPlan:
    for row in value["requests"]:
        row[_BLOCKS] = tuple(row[_BLOCKS])
    fields = {name: value[name] for name in PLAN_FIELDS}
    fields["kind"], fields["mode"] = StepKind(fields["kind"]), StepMode(fields["mode"])
    return StepPlan(
        requests=[ScheduledRequest(*row) for row in value["requests"]],
        new_requests=[placeholder_request(*row) for row in value["new"]],
        **fields,
    )


def _committed(value: Mapping[str, Any], plan: StepPlan) -> Committed:
    texts = value.get("token_ids") or [None] * len(plan.requests)
    results = [
        RequestResult(
            entry.request_id,
            entry.epoch,
            [PLACEHOLDER] * row[0] if text is None else text,
            num_verified=row[1],
            num_accepted=row[2],
            num_draft_tokens=row[3],
            draft_confidences=row[4],
            error=row[5],
        )
        for entry, row, text in zip(plan.requests, value["results"], texts, strict=True)
    ]
    fields = {name: value[name] for name in RESULT_FIELDS}
    fields["mode"] = StepMode(fields["mode"])
    return Committed(
        value["at"],
        StepResult(results=results, **fields),
        {name: StopVerdict(kept, FinishReason(reason), stop) for name, (kept, reason, stop) in value["ends"].items()},
        {name: [bytes.fromhex(text) for text in hashes] for name, hashes in value["block_hashes"].items()},
    )
