"""The invariants of design 3, checked on every step of every test run."""

from __future__ import annotations

from slipstream.request import RequestStatus
from slipstream.scheduler.protocol import StepPlan
from slipstream.scheduler.scheduler import Scheduler


class InvariantError(AssertionError):
    """A plan breaks a promise of the scheduler."""


class InvariantChecker:
    """Call `check_plan` after each `schedule` and `check_pool` after each `commit`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._last_counters: list[int] = []

    def check_plan(self, plan: StepPlan) -> None:
        """Raise InvariantError where the plan is over budget, out of range or unfair."""
        scheduler, config, layout = self._scheduler, self._scheduler.config, self._scheduler.layout
        target_rows = sum(entry.num_target_rows for entry in plan.requests)
        draft_rows = sum(entry.num_draft_query_rows for entry in plan.requests)
        _require(
            target_rows == plan.num_target_rows, f"plan says {plan.num_target_rows} target rows, has {target_rows}"
        )
        _require(
            target_rows <= config.max_num_batched_tokens,
            f"{target_rows} target rows of {config.max_num_batched_tokens}",
        )
        if config.draft_budget == "separate":
            _require(draft_rows <= config.draft_capacity, f"{draft_rows} draft rows of {config.draft_capacity}")
            self._check_anchors(plan)
        else:
            reserved = layout.reserved_slots(config.num_speculative_tokens) * len(plan.requests)
            _require(
                target_rows + reserved <= config.max_num_batched_tokens,
                f"{target_rows} rows and {reserved} reserved of {config.max_num_batched_tokens}",
            )
        _require(len({entry.request_id for entry in plan.requests}) == len(plan.requests), "a request is planned twice")
        _require(scheduler.num_running <= config.max_num_seqs, f"{scheduler.num_running} run of {config.max_num_seqs}")
        for entry in plan.requests:
            end = entry.num_computed_tokens + entry.num_target_rows
            _require(entry.num_target_rows >= 1, f"{entry} has no row")
            _require(end <= scheduler.max_request_tokens, f"{entry} reaches position {end - 1}")
            _require(0 <= entry.num_verify_rows <= config.num_speculative_tokens, f"{entry} verifies too many")
            expected = layout.draft_query_rows(entry.num_target_rows, entry.num_draft_tokens)
            _require(entry.num_draft_query_rows == expected, f"{entry} should cost {expected} draft rows")
        self.check_pool()

    def _check_anchors(self, plan: StepPlan) -> None:
        planned = {entry.request_id for entry in plan.requests}
        extra_rows = plan.num_verify_rows + plan.num_prefill_rows
        for request in self._scheduler.running:
            start = request.num_computed_tokens + request.in_flight_rows
            is_decode = not request.is_prefilling and request.request_id not in planned
            may_run = (
                start < request.max_total_tokens
                and len(request.token_ids) + request.in_flight_emits < request.max_total_tokens
            )
            _require(not (is_decode and may_run and extra_rows), f"{request} got no row while others got {extra_rows}")

    def check_pool(self) -> None:
        """Blocks used + free = total, every table within the pool, counters never fall."""
        scheduler = self._scheduler
        pool = scheduler.kv.pool
        _require(pool.num_used + pool.num_free == pool.num_blocks, "KV blocks went missing")
        owned = {block for request in scheduler.running for block in request.block_ids}
        _require(len(owned) == pool.num_used, f"{pool.num_used} blocks are used, {len(owned)} are owned")
        for request in scheduler.waiting:
            _require(not request.block_ids and request.status is RequestStatus.WAITING, f"{request} waits with blocks")
        statistics = scheduler.statistics
        counters = [
            statistics.num_target_rows,
            statistics.num_verify_rows,
            statistics.num_draft_query_rows,
            statistics.num_drafted_tokens,
            statistics.num_admitted_tokens,
            statistics.num_verified_tokens,
            statistics.num_accepted_tokens,
            statistics.num_output_tokens,
            statistics.num_preemptions,
            scheduler.kv.num_query_tokens,
            scheduler.kv.num_hit_tokens,
        ]
        _require(min(counters) >= 0, f"a counter is below 0: {counters}")
        if self._last_counters:
            fell = [i for i, (old, new) in enumerate(zip(self._last_counters, counters, strict=True)) if new < old]
            _require(not fell, f"counters {fell} fell: {self._last_counters} -> {counters}")
        self._last_counters = counters


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
