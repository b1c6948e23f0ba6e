"""CostTable: what steps cost on one machine with one model, measured or modelled (design 4).

Times are milliseconds. Graph modes are stairs: a step is padded to the next captured size, and past the largest one the
graph is lost. Eager mode is linear between its points, flat before the first, and goes on with the last slope.
The JSON form is in cost_table_json.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.config import SettingError, shown
from slipstream.scheduler.costs import DecodeGraphs, StepRun, StepShape
from slipstream.scheduler.interpolation import Curve, Grid
from slipstream.scheduler.protocol import StepMode

MAX_CORRECTION = 1e6
MAX_ROWS = 1 << 24


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a table's figures come from. `command` made them, or `source` published them."""

    machine: str
    model: str
    date: str = ""
    command: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCost:
    """The host's part of a step, outside both passes: planning, committing, text."""

    per_step_ms: float = 0.0
    per_request_ms: float = 0.0

    def __call__(self, num_requests: int) -> float:
        return self.per_step_ms + num_requests * self.per_request_ms


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """What of the pass follows neither its rows nor the KV it reads: the requests it serves, and the pairs of a row and
    a token it looks at (long prompts)."""

    per_request_ms: float = 0.0
    per_pair_ms: float = 0.0

    def __call__(self, num_requests: int, num_pairs: float) -> float:
        return num_requests * self.per_request_ms + num_pairs * self.per_pair_ms


@dataclass(frozen=True, slots=True)
class CostTable:
    """A StepCosts made of measured points.

    Attributes:
        provenance: where the figures come from.
        target: mode -> milliseconds over (rows, KV tokens read); EAGER must be there.
        draft: milliseconds over (requests, query rows per request); None without a drafter of its own cost.
        sampling: milliseconds of logits and sampling over sampled rows; None where `target` includes them.
        attention: what requests and pairs add to `target`.
        host: the rest of a step.
        decode_graphs: which decode graphs exist; NONE without a FULL_GRAPH curve.
        capture_sizes: row counts that graphs were captured for, rising.
        corrections: mode -> factor on the pass in that mode, learnt from live steps after the table was measured.
        version: grows with each refit.
    """

    provenance: Provenance
    target: Mapping[StepMode, Grid]
    draft: Grid | None = None
    sampling: Curve | None = None
    attention: AttentionCost = field(default_factory=AttentionCost)
    host: HostCost = field(default_factory=HostCost)
    decode_graphs: DecodeGraphs = DecodeGraphs.NONE
    capture_sizes: tuple[int, ...] = ()
    corrections: Mapping[StepMode, float] = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        if StepMode.EAGER not in self.target:
            raise SettingError("a cost table needs a target curve for eager mode: what does not fit a graph runs there")
        if self.decode_graphs is not DecodeGraphs.NONE and StepMode.FULL_GRAPH not in self.target:
            raise SettingError(f"decode_graphs {self.decode_graphs} needs a target curve for full_graph")
        has_graphs = StepMode.FULL_GRAPH in self.target or StepMode.PIECEWISE in self.target
        if has_graphs and not self.capture_sizes:
            raise SettingError("a cost table with graphs needs capture_sizes, the row counts they were captured for")
        rises = all(a < b for a, b in zip((0, *self.capture_sizes), self.capture_sizes, strict=False))
        if not rises or self.capture_limit > MAX_ROWS:
            raise SettingError(
                f"capture_sizes must rise from 1 or more to {MAX_ROWS} at most, got {shown(list(self.capture_sizes))}"
            )
        for mode, factor in self.corrections.items():
            if not 0.0 < factor <= MAX_CORRECTION:
                raise SettingError(
                    f"the correction of {mode.value} must be a factor above 0 and at most {MAX_CORRECTION:g}, "
                    f"got {shown(factor)}"
                )

    @property
    def capture_limit(self) -> int:
        """Rows that graphs hold at most; 0 without graphs."""
        return self.capture_sizes[-1] if self.capture_sizes else 0

    def dispatch(self, shape: StepShape) -> StepRun:
        """See StepCosts. A pure decode step within the capture limit replays a full graph where its shape allows; any
        other step runs piecewise within the limit where such graphs exist, else eagerly."""
        rows = shape.num_rows
        if not 0 < rows <= self.capture_limit:
            return StepRun(StepMode.EAGER, rows)
        mode = self._mode_within_limit(is_pure=shape.num_prompt_rows == 0, is_uniform=shape.is_uniform)
        if mode is StepMode.EAGER:
            return StepRun(mode, rows)
        padded = self.capture_sizes[bisect_left(self.capture_sizes, rows)]
        return StepRun(mode, padded, f"{mode.value}/{padded}")

    def target_ms(self, shape: StepShape) -> float:
        """See StepCosts; 0 for an empty step."""
        if not shape.num_rows:
            return 0.0
        return self.pass_ms(shape) + self.host(shape.num_decodes + shape.num_emitting_prompts)

    def pass_ms(self, shape: StepShape) -> float:
        """The target's pass and sampling, what an executor reports as `target_ms`; 0 for an empty step."""
        if not shape.num_rows:
            return 0.0
        run = self.dispatch(shape)
        ms = self.target[run.mode](run.num_padded_rows, shape.num_kv_tokens)
        ms += self.attention(shape.num_requests, shape.num_pairs)
        if self.sampling is not None and shape.num_sampled_rows:
            ms += self.sampling(shape.num_sampled_rows)
        return ms * self.corrections.get(run.mode, 1.0)

    def target_ms_by_verify_rows(self, shape: StepShape, most: int) -> NDArray[np.float64]:
        """`target_ms` of the shape with n = 0 … `most` verify rows of any lengths, shape [most + 1]: all at once, for
        rules that weigh every n."""
        extra = np.arange(most + 1.0)
        rows = shape.num_rows + extra
        mode = self._mode_within_limit(is_pure=shape.num_prompt_rows == 0, is_uniform=False)
        ms = np.empty(most + 1)
        num_in_graph = 0
        if mode is not StepMode.EAGER:
            sizes = np.array(self.capture_sizes, dtype=np.float64)
            num_in_graph = max(min(self.capture_limit - shape.num_rows, most) + 1, 0)
            padded = sizes[np.searchsorted(sizes, rows[:num_in_graph])]
            ms[:num_in_graph] = self.target[mode].along_rows(padded, shape.num_kv_tokens)
        if num_in_graph <= most:
            eager = self.target[StepMode.EAGER]
            ms[num_in_graph:] = eager.along_rows(rows[num_in_graph:], shape.num_kv_tokens)
        pairs_per_row = shape.num_kv_tokens / max(shape.num_requests, 1)
        ms += self.attention(shape.num_requests, shape.num_pairs)
        ms += extra * (pairs_per_row * self.attention.per_pair_ms)
        if self.sampling is not None and shape.num_sampled_rows + most:
            ms += self.sampling.at(shape.num_sampled_rows + extra)
        ms[:num_in_graph] *= self.corrections.get(mode, 1.0)
        ms[num_in_graph:] *= self.corrections.get(StepMode.EAGER, 1.0)
        ms += self.host(shape.num_decodes + shape.num_emitting_prompts)
        ms[0] = self.target_ms(shape)  # without verify rows the step is uniform
        return ms

    def _mode_within_limit(self, *, is_pure: bool, is_uniform: bool) -> StepMode:
        """The mode of a step that the largest graph would hold."""
        if is_pure and (
            self.decode_graphs is DecodeGraphs.VARLEN or (self.decode_graphs is DecodeGraphs.UNIFORM and is_uniform)
        ):
            return StepMode.FULL_GRAPH
        return StepMode.PIECEWISE if StepMode.PIECEWISE in self.target else StepMode.EAGER

    def draft_ms(self, num_requests: int, num_rows: int) -> float:
        """See StepCosts. A drafter without rows (n-gram) has its cost at 0 rows."""
        if self.draft is None or num_requests <= 0 or num_rows < 0:
            return 0.0
        return self.draft(num_requests, num_rows / num_requests)
