"""Reads recordings back, also those that were cut off (format: recording.py and docs/replay.md)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.config import (
    CacheSettings,
    ModelFacts,
    ModelSettings,
    SchedulerConfig,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
)
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
from slipstream.simulation.recording import (
    FORMAT,
    NEW_COLUMNS,
    PLACEHOLDER,
    PLAN_FIELDS,
    REQUEST_COLUMNS,
    RESULT_COLUMNS,
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

_BLOCKS = REQUEST_COLUMNS.index("new_block_ids")
_CHUNK = 1 << 16


def read_recording(path: Path) -> Recording:
    """Read a recording; one that was cut off (a crash, a full disk) is read as far as it goes.

    Raises:
        SettingError: no such file, not a recording, or of a format this release does not know.
    """
    lines = _Lines(path)
    header: Header | None = None
    events: list[RecordedEvent] = []
    last_plan: dict[int, StepPlan] = {}
    ended = False
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            if header is None:
                raise SettingError(f"{path} is not a recording: its first line is no JSON") from None
            break  # the last line was cut
        try:
            if header is None:
                header = _header(path, value)
            elif value["event"] == "end":
                ended = True
            else:
                events.append(_event(value, last_plan))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(f"{path}: line {len(events) + 2} is damaged ({type(error).__name__}: {error})") from None
    if header is None:
        raise SettingError(f"{path} is empty; a recording begins with a header")
    return Recording(header, events, not ended)


class _Lines:
    """Lines of a file, gzip or plain, up to where it was cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            for piece in self._pieces():
                *whole, rest = (rest + piece).split(b"\n")
                yield from whole
        except zlib.error:
            return  # what follows a cut is noise
        except OSError as error:
            raise SettingError(f"{self._path} cannot be read: {error.strerror or error}") from None
        if rest:
            yield rest

    def _pieces(self) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            first = file.read(_CHUNK)
            if not first.startswith(b"\x1f\x8b"):
                while first:
                    yield first
                    first = file.read(_CHUNK)
                return
            inflate = zlib.decompressobj(wbits=31)
            while first:
                yield inflate.decompress(first)
                first = file.read(_CHUNK)


def _header(path: Path, value: Any) -> Header:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise SettingError(f'{path} is not a recording: its first line should have "format": "{FORMAT}", not {found!r}')
    try:
        columns = value["columns"]
        for name, known in (("request", REQUEST_COLUMNS), ("new", NEW_COLUMNS), ("result", RESULT_COLUMNS)):
            if tuple(columns[name]) != known:
                raise TypeError(f"columns of {name} differ")
        settings, facts = value["settings"], value["facts"]
        return Header(
            version=value["version"],
            date=value["date"],
            model=value["model"],
            config=SchedulerConfig(**_tuples(value["config"])),
            costs=_costs(value["costs"]),
            settings=None if settings is None else _settings(settings),
            facts=None if facts is None else ModelFacts(**facts),
            has_text=value["has_text"],
        )
    except (KeyError, TypeError) as error:
        version = value.get("version", "an unknown version")
        raise SettingError(f"{path} was recorded by {version} with settings this release does not know: {error}") from (
            None
        )


def _settings(value: Mapping[str, Any]) -> Settings:
    speculative = value["speculative"]
    return Settings(
        model=ModelSettings(**value["model"]),
        cache=CacheSettings(**value["cache"]),
        scheduler=SchedulerSettings(**_tuples(value["scheduler"])),
        speculative=None if speculative is None else SpeculativeSettings(**_tuples(speculative)),
    )


def _tuples(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same, its lists as the tuples that settings hold."""

    def frozen(item: Any) -> Any:
        return tuple(map(frozen, item)) if isinstance(item, list) else item

    return {key: frozen(item) for key, item in value.items()}


def _costs(value: Any) -> CostTable | None:
    return None if value is None else cost_table_from_json(value)


def _event(value: dict[str, Any], plans: dict[int, StepPlan]) -> RecordedEvent:
    match value.pop("event"):
        case "plan":
            plan = _plan(value)
            plans[plan.step] = plan
            return Planned(value["now"], plan)
        case "commit":
            return _committed(value, plans)
        case "add":
            hashes = tuple(map(bytes.fromhex, value.pop("block_hashes")))
            token_ids = value.pop("prompt_token_ids", None)
            for name in ("sampling", "seed"):
                value.pop(name, None)
            return Added(**value, block_hashes=hashes, prompt_token_ids=None if token_ids is None else tuple(token_ids))
        case "abort":
            return Aborted(**value)
        case "costs":
            return CostsSet(_costs(value["costs"]))
        case "forget_cached":
            return CacheForgotten()
        case "mark":
            return Marked(**value)
        case name:
            raise ValueError(f"unknown event {name!r}")


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


def _committed(value: Mapping[str, Any], plans: dict[int, StepPlan]) -> Committed:
    plan = plans.pop(value["step"])
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
