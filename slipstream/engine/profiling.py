"""CostProfiler: measures a cost table on the engine's own executor, in a time that is bounded.

Every quantity gets the same part of the time, so what is short, as steps of few requests are, is timed often; its times
are spread over the whole, so that a machine that drifts moves all quantities alike. Each counts with the middle of its
times. Large passes may be left out, since the fit extrapolates them; draft passes and the host's part of a step
may not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from slipstream.config import SchedulerConfig
from slipstream.engine.cost_fit import PassFit, fit_host, fit_passes
from slipstream.engine.profile_shapes import PassShape, pass_shapes, row_axis, sampled_rows
from slipstream.engine.step_probe import DRAFT_CONTEXT, NUM_HOST_STEPS, draft_slots
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.interpolation import Curve, Grid
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import StepMode
from slipstream.scheduler.scheduler import Scheduler

Key = TypeVar("Key")

MAX_ROUNDS = 7
MAX_DRAFTING = 16  # requests of the largest draft pass that is timed
SLACK = 1.5  # a quantity not yet timed is taken to need so much more than its size says


class Probe(Protocol):
    """Runs a step's parts and times them in milliseconds; see StepProbe."""

    @property
    def tile_rows(self) -> int | None: ...

    @property
    def has_drafter(self) -> bool: ...

    def pass_ms(self, shape: PassShape) -> float: ...

    def sampling_ms(self, num_rows: int) -> float: ...

    def draft_ms(self, num_requests: int, num_drafts: int, num_query_rows: int) -> float: ...

    def host_ms(self, scheduler: Scheduler, num_requests: int) -> float: ...

    def close(self) -> None:
        """Leave nothing behind; more may be timed afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class DraftShape:
    """A draft pass to time. num_query_rows: per request."""

    num_requests: int
    num_drafts: int
    num_query_rows: int


@dataclass(slots=True)
class _Quantity:
    """Something to time.

    Attributes:
        size: about how long it takes, beside others of its kind.
        is_needed: timed in every round, however long it takes.
        wall_s: what timing it once took, None before.
    """

    kind: str
    measure: Callable[[], float]
    size: float
    is_needed: bool = False
    ms: list[float] = field(default_factory=list)
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured: milliseconds by what was timed, and the fit of the passes.

    Attributes:
        num_repeats: least and most times that anything was timed.
        num_skipped: quantities that did not fit the time.
    """

    passes: dict[PassShape, float]
    sampling: dict[int, float]
    draft: dict[DraftShape, float]
    host: dict[int, float]
    fit: PassFit
    num_repeats: tuple[int, int]
    num_skipped: int

    def table(self, provenance: Provenance) -> CostTable:
        """As a cost table; what the fit leaves unexplained is in the notes."""
        errors = sorted(abs(error) for error in self.fit.errors.values())
        notes = [
            f"medians of {self.num_repeats[0]} to {self.num_repeats[1]} repeats",
            f"the fit of {len(errors)} passes is off by {statistics.median(errors):.1%} in the median, "
            f"{errors[-1]:.1%} at most",
        ]
        if self.num_skipped:
            notes.append(f"{self.num_skipped} larger quantities did not fit the time and are extrapolated")
        return CostTable(
            provenance=replace(provenance, notes=(*provenance.notes, *notes)),
            target={StepMode.EAGER: self.fit.target},
            draft=_draft_grid(self.draft),
            sampling=_curve(self.sampling),
            attention=self.fit.attention,
            host=fit_host(self.host),
        )


class CostProfiler:
    """Times what a probe runs. `run` may be called again for more repeats.

    Args:
        config: sizes of the scheduler that the table is for; its KV pool bounds what is timed.
        clock: seconds.
    """

    def __init__(
        self, probe: Probe, config: SchedulerConfig, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._most_rows = config.max_num_batched_tokens
        axis = row_axis(self._most_rows, probe.tile_rows)
        few = max(min(config.max_num_seqs, MAX_DRAFTING, config.num_kv_blocks // 2), 1)
        self._passes = {
            shape: _Quantity("pass", partial(probe.pass_ms, shape), shape.size) for shape in pass_shapes(config, axis)
        }
        self._sampling = {
            count: _Quantity("sampling", partial(probe.sampling_ms, count), PassShape((count,), 0).size / 2)
            for count in sampled_rows(config)
        }
        self._host = {
            count: _Quantity(
                "host",
                partial(self._host_ms, config, count),
                (2 + NUM_HOST_STEPS) * PassShape((1,) * count, 0).size,
                is_needed=count == 1,
            )
            for count in sorted({1, few})
        }
        self._draft = {
            shape: _Quantity(
                "draft",
                partial(probe.draft_ms, shape.num_requests, shape.num_drafts, shape.num_query_rows),
                3 * PassShape((1,) * shape.num_requests, DRAFT_CONTEXT).size,
                is_needed=True,
            )
            for shape in (_draft_shapes(config) if probe.has_drafter else ())
        }
        self._quantities = [
            *self._passes.values(),
            *self._sampling.values(),
            *self._draft.values(),
            *self._host.values(),
        ]

    def run(
        self, seconds: float, *, rounds: int = MAX_ROUNDS, on_progress: Callable[[float], None] | None = None
    ) -> None:
        """Time everything up to `rounds` times more, what is long less often where the time is short. Nothing is begun
        that is expected to end after `seconds`; `on_progress` hears the part of the time or of the rounds that is over,
        whichever is more."""
        begin = self._clock()
        share = seconds / len(self._quantities)
        done = dict.fromkeys(map(id, self._quantities), 0)
        left = list(self._quantities)
        is_again = any(quantity.ms for quantity in left)
        left_out = {id(quantity) for quantity in left if is_again and not quantity.ms}

        def progress(quantity: _Quantity) -> float:
            affordable = share / max(self._expected_s(quantity), 1e-9)
            wanted = rounds if quantity.is_needed else min(max(affordable, 1.0), rounds)
            return (done[id(quantity)] + 0.5) / wanted  # the only time of a long one lies in the middle

        while left:
            # What was left out before comes first.
            quantity = min(left, key=lambda quantity: (id(quantity) not in left_out, progress(quantity), quantity.size))
            passed = self._clock() - begin
            if on_progress is not None:
                on_progress(max(passed / seconds, sum(done.values()) / (rounds * len(done))))
            if passed + self._expected_s(quantity) > seconds or done[id(quantity)] == rounds:
                left.remove(quantity)
                continue
            self._time(quantity)
            done[id(quantity)] += 1
            left_out.discard(id(quantity))
        self._probe.close()

    def profile(self) -> Profile | None:
        """What was measured so far; None when the time was too short to learn how cost grows with rows, or what drafts
        cost: they must not pass for free."""
        passes = _medians(self._passes)
        axis = {shape.num_rows for shape in passes if shape.context == 0 and shape.num_requests == 1}
        sampling, draft = _medians(self._sampling), _medians(self._draft)
        if len(axis) < 2 or not sampling or (self._draft and _draft_grid(draft) is None):
            return None
        counts = [len(quantity.ms) for quantity in self._quantities]
        timed = [count for count in counts if count]
        return Profile(
            passes,
            sampling,
            draft,
            _medians(self._host),
            fit_passes(passes, self._most_rows),
            (min(timed), max(timed)),
            len(counts) - len(timed),
        )

    def _expected_s(self, quantity: _Quantity) -> float:
        """What it took, or is likely to take by what others of its size took; the smaller, the more of it is overhead.
        The first time warms up, so it is done twice."""
        if quantity.wall_s is not None:
            return quantity.wall_s
        judges = [other for other in self._quantities if other.wall_s is not None]
        judges = [other for other in judges if other.kind == quantity.kind] or judges
        judges = [other for other in judges if other.size >= quantity.size / 2] or judges
        return 2 * SLACK * quantity.size * max([(other.wall_s or 0.0) / other.size for other in judges], default=0.0)

    def _time(self, quantity: _Quantity) -> None:
        if quantity.wall_s is None:
            quantity.measure()
        begin = self._clock()
        quantity.ms.append(quantity.measure())
        quantity.wall_s = self._clock() - begin

    def _host_ms(self, config: SchedulerConfig, num_requests: int) -> float:
        return self._probe.host_ms(Scheduler(config), num_requests)


def _draft_shapes(config: SchedulerConfig) -> list[DraftShape]:
    """Few and many requests, one draft and all of them; only what fits the KV pool."""
    layout, most = LAYOUTS[config.layout_name], config.num_speculative_tokens
    slots = DRAFT_CONTEXT + 1 + draft_slots(most)
    blocks_each = -(-slots // config.block_size)
    many = min(config.max_num_seqs, MAX_DRAFTING, config.num_kv_blocks // blocks_each)
    if not most or many < 1 or config.max_model_len <= slots:
        return []
    by_rows = {layout.draft_query_rows(1, count): count for count in (1, most)}
    return [DraftShape(count, drafts, rows) for count in sorted({1, many}) for rows, drafts in sorted(by_rows.items())]


def _draft_grid(measured: dict[DraftShape, float]) -> Grid | None:
    """None unless some number of requests was timed with all numbers of rows."""
    columns = sorted({shape.num_query_rows for shape in measured})
    by_place = {(shape.num_requests, shape.num_query_rows): ms for shape, ms in measured.items()}
    counts = sorted({shape.num_requests for shape in measured})
    rows = [count for count in counts if all((count, column) in by_place for column in columns)]
    if not rows:
        return None
    ms = tuple(tuple(by_place[row, column] for column in columns) for row in rows)
    return Grid(tuple(map(float, rows)), tuple(map(float, columns)), ms)


def _curve(measured: dict[int, float]) -> Curve:
    return Curve(tuple(map(float, measured)), tuple(measured.values()))


def _medians(quantities: dict[Key, _Quantity]) -> dict[Key, float]:
    return {key: statistics.median(quantity.ms) for key, quantity in quantities.items() if quantity.ms}
