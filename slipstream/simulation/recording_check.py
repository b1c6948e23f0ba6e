"""Whether the lines of a recording can be what a scheduler did: types, ranges, and that each names what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.config import MAX_SPECULATIVE_TOKENS, SchedulerConfig, shown
from slipstream.scheduler.protocol import StepPlan
from slipstream.simulation.recording import Aborted, Added, Marked, Planned

_REQUEST_TYPES = (str, int, int, int, int, int, bool, bool, int, int, list)
_NEW_TYPES = (str, int, int, int, int, int)
_RESULT_TYPES = (int, int, int, int)
_MOST = 1 << 40
"""Of a count; any real one is far below."""


class ImpossibleError(ValueError):
    """What a line says cannot have been."""


class RecordingCheck:
    """Follows a recording's events in order. Every method raises ImpossibleError."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._block_size = config.block_size
        self._limit = min(config.max_model_len, config.num_kv_blocks * config.block_size)
        self._live: set[str] = set()
        self._num_steps = 0

    def added(self, event: Added) -> None:
        """A request was queued."""
        name = event.request_id
        _require(isinstance(name, str) and name not in self._live, f"request {shown(name)} is added twice")
        self._live.add(name)
        count = event.num_prompt_tokens
        _require(
            _is_count(count) and 0 < count < self._limit,
            f"a prompt of {shown(count)} tokens, where requests have at most {self._limit}",
        )
        _require(event.max_tokens is None or _is_count(event.max_tokens), f"max_tokens is {shown(event.max_tokens)}")
        _require(type(event.priority) is int and abs(event.priority) < 1 << 63, f"priority is {shown(event.priority)}")
        _require(_is_count(event.choice_index), f"choice_index is {shown(event.choice_index)}")
        _require(_is_time(event.arrival_time), f"arrival_time is {shown(event.arrival_time)}")
        most = event.max_draft_tokens
        _require(most is None or _is_count(most), f"max_draft_tokens is {shown(most)}")
        _require(type(event.reads_prefix_cache) is bool, f"reads_prefix_cache is {shown(event.reads_prefix_cache)}")
        _require(len(event.block_hashes) <= count // self._block_size, "more block hashes than full blocks")
        tokens = event.prompt_token_ids
        _require(
            tokens is None or (len(tokens) == count and all(map(_is_count, tokens))),
            f"prompt_token_ids are not {count} token ids",
        )

    def aborted(self, event: Aborted) -> None:
        """A request was dropped."""
        self._must_live(event.request_id)
        self._live.discard(event.request_id)
        _require(_is_time(event.at), f"at is {shown(event.at)}")

    def plan_rows(self, value: Mapping[str, Any]) -> None:
        """The rows of a plan, before anything is made of them."""
        for row in value["requests"]:
            _require(tuple(map(type, row)) == _REQUEST_TYPES, f"a request of the plan is {shown(row)}")
            counts = (*row[1:5], *row[8:10])
            _require(
                min(counts) >= 0 and max(counts) <= _MOST and -1 <= row[5] <= _MOST and row[4] <= row[3],
                f"a request of the plan is {shown(row)}",
            )
            _require(row[8] <= MAX_SPECULATIVE_TOKENS and all(map(_is_count, row[10])), f"a request is {shown(row)}")
        for row in value["new"]:
            _require(tuple(map(type, row)) == _NEW_TYPES, f"a new request is {shown(row)}")
            _require(
                min(row[1:]) >= 0 and max(row[2:4]) <= self._limit and max(row[1:]) <= _MOST,
                f"a new request is {shown(row)}, where requests have at most {self._limit} tokens",
            )

    def planned(self, event: Planned) -> None:
        """A step was planned."""
        plan = event.plan
        _require(_is_time(event.now), f"a step is planned at {shown(event.now)}")
        for name in ("num_target_rows", "num_prefill_rows", "num_verify_rows", "num_draft_query_rows"):
            _require(_is_count(getattr(plan, name)), f"{name} is {shown(getattr(plan, name))}")
        _require(_is_count(plan.num_padded_rows), f"num_padded_rows is {shown(plan.num_padded_rows)}")
        _require(isinstance(plan.reason, str), f"reason is {shown(plan.reason)}")
        _require(plan.graph_key is None or isinstance(plan.graph_key, str), f"graph_key is {shown(plan.graph_key)}")
        version = plan.costs_version
        _require(version is None or _is_count(version), f"costs_version is {shown(version)}")
        released = plan.released_request_ids
        _require(
            isinstance(released, list) and all(isinstance(name, str) for name in released),
            f"released_request_ids is {shown(released)}",
        )
        for name in (*(one.request_id for one in plan.requests), *(one.request_id for one in plan.new_requests)):
            self._must_live(name)
        if plan.requests:
            _require(plan.step == self._num_steps, f"step {shown(plan.step)} stands where {self._num_steps} is due")
            self._num_steps += 1

    def result_rows(self, plan: StepPlan, value: Mapping[str, Any]) -> None:
        """The rows of a step's results, and its ends, before anything is made of them."""
        rows, texts = value["results"], value.get("token_ids")
        for part in (rows, *([] if texts is None else [texts])):
            _require(
                isinstance(part, list) and len(part) == len(plan.requests),
                f"step {plan.step} has {len(plan.requests)} requests, and its results are not as many",
            )
        for place, (entry, row) in enumerate(zip(plan.requests, rows, strict=True)):
            what = f"a result of step {plan.step} is {shown(row)}"
            _require(isinstance(row, list) and len(row) == 6 and tuple(map(type, row[:4])) == _RESULT_TYPES, what)
            num_tokens, num_verified, num_accepted, num_drafts, confidences, error = row
            _require(
                0 <= num_accepted <= num_verified <= entry.num_verify_rows
                and 0 <= num_tokens <= num_accepted + 1
                and 0 <= num_drafts <= max(entry.num_draft_tokens, 0),
                f"{what}, which its plan does not allow",
            )
            _require(confidences is None or (isinstance(confidences, list) and all(map(_is_chance, confidences))), what)
            _require(error is None or isinstance(error, str), what)
            if texts is not None:
                ids = texts[place]
                _require(isinstance(ids, list) and len(ids) == num_tokens and all(map(_is_count, ids)), what)
        places = {entry.request_id: place for place, entry in enumerate(plan.requests)}
        for name, end in value["ends"].items():
            _require(name in places, f"{shown(name)} ends in step {plan.step}, which does not hold it")
            _require(
                isinstance(end, list)
                and len(end) == 3
                and _is_count(end[0])
                and end[0] <= rows[places[name]][0]
                and (end[2] is None or type(end[2]) in (int, str)),
                f"the end of {shown(name)} is {shown(end)}",
            )
        for name in value["block_hashes"]:
            _require(name in places, f"step {plan.step} has block hashes of {shown(name)}, which it does not hold")

    def committed(self, ends: Sequence[str], times: Mapping[str, object], counts: Mapping[str, object]) -> None:
        """A step's results are in. `times`, `counts`: the numbers of its line by name."""
        for name, value in times.items():
            _require(_is_time(value) and (name == "at" or value >= 0), f"{name} is {shown(value)}")  # type: ignore[operator]
        for name, value in counts.items():
            _require(_is_count(value), f"{name} is {shown(value)}")
        self._live.difference_update(ends)

    def marked(self, event: Marked) -> None:
        """A part of a benchmark begins."""
        most = event.max_concurrency
        _require(isinstance(event.name, str), f"name is {shown(event.name)}")
        _require(isinstance(event.is_measured, bool), f"is_measured is {shown(event.is_measured)}")
        _require(most is None or (_is_count(most) and most > 0), f"max_concurrency is {shown(most)}")

    def _must_live(self, name: object) -> None:
        _require(isinstance(name, str) and name in self._live, f"request {shown(name)} is not there")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ImpossibleError(otherwise)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _MOST  # type: ignore[arg-type]


def _is_chance(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]
