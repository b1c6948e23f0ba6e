"""Writes recordings: RecordedScheduler is a Scheduler that notes every call and its outcome (format: recording.py)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from slipstream.config import ModelFacts, SchedulerConfig, SettingError, Settings
from slipstream.kv.block_hash import extend_block_hashes
from slipstream.request import Request, RequestOutput
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.cost_table_json import cost_table_to_json
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.protocol import StepPlan, StepResult, StopChecker
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recording import (
    FORMAT,
    NEW_COLUMNS,
    PLAN_FIELDS,
    REQUEST_COLUMNS,
    RESULT_COLUMNS,
    RESULT_FIELDS,
)
from slipstream.simulation.recording_file import RecordingFile
from slipstream.version import __version__

HASH_BYTES = 8

_encode = json.JSONEncoder(separators=(",", ":")).encode
_request_row = attrgetter(*REQUEST_COLUMNS)
_plan_values = attrgetter(*PLAN_FIELDS)
_result_values = attrgetter(*RESULT_FIELDS)


class Recorder:
    """Turns what a scheduler was asked and answered into lines.

    Hashes of KV blocks are salted with a key that is drawn here and written nowhere: equal prompts can be told to be
    equal within one recording, and no guess at a text can be checked against it.

    Attributes:
        seconds: time spent on recording so far.
    """

    def __init__(
        self,
        to: RecordTo,
        config: SchedulerConfig,
        *,
        clock: Callable[[], float],
        model: str,
        settings: Settings | None = None,
        facts: ModelFacts | None = None,
    ) -> None:
        """`clock` is the one whose times `schedule` gets. Raises SettingError when the file cannot be written."""
        self.path = to.path
        self.seconds = 0.0
        self._file = RecordingFile(to.path)
        self._with_text = to.with_text
        self._clock = clock
        self._key = os.urandom(32)
        self._config = config
        self._header: dict[str, Any] | None = {
            "format": FORMAT,
            "version": __version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "model": model,
            "has_text": to.with_text,
            "settings": None if settings is None else dataclasses.asdict(settings),
            "facts": None if facts is None else dataclasses.asdict(facts),
            "config": dataclasses.asdict(config),
            "columns": {"request": REQUEST_COLUMNS, "new": NEW_COLUMNS, "result": RESULT_COLUMNS},
        }
        self._requests: dict[str, Request] = {}
        self._num_hashes: dict[str, int] = {}

    def begin(self, costs: StepCosts | None) -> None:
        """The header; a scheduler was made that decides by these costs."""
        if self._header is not None:
            self._file.append(_encode({**self._header, "costs": _costs_json(costs)}))
            self._header = None

    def added(self, request: Request) -> None:
        """A request was queued."""
        begin = time.perf_counter()
        size = self._config.block_size
        if self._config.enable_prefix_caching:
            full = request.num_prompt_tokens // size * size
            extend_block_hashes(request.block_hashes, request.token_ids, size, request.cache_salt, full)
        self._requests[request.request_id] = request
        self._num_hashes[request.request_id] = 0
        event = {
            "event": "add",
            "request_id": request.request_id,
            "num_prompt_tokens": request.num_prompt_tokens,
            "max_tokens": request.sampling.max_tokens,
            "priority": request.priority,
            "arrival_time": request.arrival_time,
            "choice_index": request.choice_index,
            "max_draft_tokens": request.max_draft_tokens,
            "reads_prefix_cache": request.reads_prefix_cache,
            "block_hashes": self._new_hashes(request),
        }
        if self._with_text:
            event |= {
                "prompt_token_ids": request.token_ids,
                "sampling": dataclasses.asdict(request.sampling),
                "seed": request.seed,
            }
        self._write(event, begin)

    def aborted(self, request_id: str) -> None:
        """A request was dropped."""
        begin = time.perf_counter()
        self._forget(request_id)
        self._write({"event": "abort", "request_id": request_id, "at": self._clock()}, begin)

    def planned(self, now: float, plan: StepPlan) -> None:
        """A step was planned, perhaps an empty one."""
        begin = time.perf_counter()
        event = {
            "event": "plan",
            "now": now,
            **dict(zip(PLAN_FIELDS, _plan_values(plan), strict=True)),
            "requests": list(map(_request_row, plan.requests)),
            "new": [
                (
                    new.request_id,
                    new.epoch,
                    len(new.token_ids),
                    new.num_prompt_tokens,
                    new.choice_index,
                    new.max_total_tokens,
                )
                for new in plan.new_requests
            ],
        }
        self._write(event, begin)

    def committed(self, plan: StepPlan, result: StepResult, outputs: Sequence[RequestOutput]) -> None:
        """A step's results were taken in."""
        begin = time.perf_counter()
        hashes = {}
        for entry in plan.requests:
            request = self._requests.get(entry.request_id)
            if request is not None and len(request.block_hashes) > self._num_hashes[entry.request_id]:
                hashes[entry.request_id] = self._new_hashes(request)
        ends = {}
        for output in outputs:
            if output.finish_reason is not None:
                stop = output.stop_reason
                if isinstance(stop, str) and not self._with_text:
                    stop = ""
                ends[output.request_id] = (len(output.new_token_ids), output.finish_reason, stop)
                self._forget(output.request_id)
        event = {
            "event": "commit",
            "at": self._clock(),
            **dict(zip(RESULT_FIELDS, _result_values(result), strict=True)),
            "results": [
                (
                    len(r.token_ids),
                    r.num_verified,
                    r.num_accepted,
                    r.num_draft_tokens,
                    None if r.draft_confidences is None else list(map(float, r.draft_confidences)),
                    r.error,
                )
                for r in result.results
            ],
            "ends": ends,
            "block_hashes": hashes,
        }
        if self._with_text:
            event["token_ids"] = [r.token_ids for r in result.results]
        self._write(event, begin)

    def costs_set(self, costs: StepCosts | None) -> None:
        """Another cost table."""
        self._write({"event": "costs", "costs": _costs_json(costs)}, time.perf_counter())

    def cache_forgotten(self) -> None:
        """The prefix cache was emptied."""
        self._write({"event": "forget_cached"}, time.perf_counter())

    def marked(self, name: str, *, is_measured: bool, max_concurrency: int | None) -> None:
        """A part of a benchmark begins."""
        event = {"event": "mark", "name": name, "is_measured": is_measured, "max_concurrency": max_concurrency}
        self._write(event, time.perf_counter())

    def close(self) -> None:
        """The run is over."""
        if self._header is None:
            self._file.append(_encode({"event": "end"}))
        self._file.close()

    def _new_hashes(self, request: Request) -> list[str]:
        known = self._num_hashes[request.request_id]
        self._num_hashes[request.request_id] = len(request.block_hashes)
        return [
            hashlib.blake2b(block, key=self._key, digest_size=HASH_BYTES).hexdigest()
            for block in request.block_hashes[known:]
        ]

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._num_hashes.pop(request_id, None)

    def _write(self, event: dict[str, Any], begin: float) -> None:
        self._file.append(_encode(event))
        self.seconds += time.perf_counter() - begin


def _costs_json(costs: StepCosts | None) -> dict[str, Any] | None:
    if costs is None:
        return None
    if not isinstance(costs, CostTable):
        raise SettingError(f"only runs that decide by a cost table can be recorded, not by {type(costs).__name__}")
    return cost_table_to_json(costs)


class RecordedScheduler(Scheduler):
    """A Scheduler whose every call is written down. It decides as a Scheduler does."""

    def __init__(
        self,
        config: SchedulerConfig,
        recorder: Recorder,
        *,
        stop_checker: StopChecker | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        """A recording holds one scheduler's whole life, so the recorder must be new."""
        super().__init__(config, stop_checker=stop_checker, costs=costs)
        self.recorder = recorder
        recorder.begin(costs)

    def add_request(self, request: Request) -> None:
        """See Scheduler."""
        super().add_request(request)
        self.recorder.added(request)

    def abort(self, request_id: str) -> bool:
        """See Scheduler."""
        found = super().abort(request_id)
        if found:
            self.recorder.aborted(request_id)
        return found

    def schedule(self, now: float) -> StepPlan:
        """See Scheduler."""
        plan = super().schedule(now)
        self.recorder.planned(now, plan)
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """See Scheduler."""
        outputs = super().commit(plan, result)
        self.recorder.committed(plan, result, outputs)
        return outputs

    def set_costs(self, costs: StepCosts | None) -> None:
        """See Scheduler."""
        super().set_costs(costs)
        self.recorder.costs_set(costs)

    def forget_cached(self) -> None:
        """See Scheduler."""
        super().forget_cached()
        self.recorder.cache_forgotten()


def scheduler_with(
    recorder: Recorder | None,
    config: SchedulerConfig,
    *,
    stop_checker: StopChecker | None = None,
    costs: StepCosts | None = None,
) -> Scheduler:
    """A scheduler; a recorded one where there is a recorder."""
    if recorder is None:
        return Scheduler(config, stop_checker=stop_checker, costs=costs)
    return RecordedScheduler(config, recorder, stop_checker=stop_checker, costs=costs)
