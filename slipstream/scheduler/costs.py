"""What a step costs, as policies, simulator and runner ask it: one description of a step, one protocol (design 4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from slipstream.scheduler.protocol import StepMode, StepPlan


class DecodeGraphs(StrEnum):
    """Which graphs of pure decode steps exist.

    UNIFORM: all requests hold the same number of rows, or the graph is lost. VARLEN: any rows. NONE: no graphs.
    """

    UNIFORM = "uniform"
    VARLEN = "varlen"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step decides the cost of its target pass.

    Attributes:
        num_decodes: requests with an anchor row.
        num_verify_rows: drafts verified beside the anchors.
        num_prompt_rows: rows of prompt chunks.
        num_emitting_prompts: chunks whose last row is sampled.
        num_kv_tokens: tokens of KV that the rows read: per request its tokens up to its last row, summed.
        is_uniform: every decode holds the same number of rows.
    """

    num_decodes: int
    num_verify_rows: int = 0
    num_prompt_rows: int = 0
    num_emitting_prompts: int = 0
    num_kv_tokens: int = 0
    is_uniform: bool = True

    @property
    def num_rows(self) -> int:
        """Rows of the target's pass."""
        return self.num_decodes + self.num_verify_rows + self.num_prompt_rows

    @property
    def num_sampled_rows(self) -> int:
        """Rows whose logits are computed and sampled."""
        return self.num_decodes + self.num_verify_rows + self.num_emitting_prompts


def shape_of(plan: StepPlan) -> StepShape:
    """The shape of a plan, as far as its upper bounds tell."""
    num_decodes = num_emitting_prompts = num_kv_tokens = 0
    first_rows, is_uniform = 0, True
    for entry in plan.requests:
        num_kv_tokens += entry.num_computed_tokens + entry.num_target_rows
        if entry.is_prefill:
            num_emitting_prompts += entry.emits
            continue
        num_decodes += 1
        first_rows = first_rows or entry.num_target_rows
        is_uniform = is_uniform and entry.num_target_rows == first_rows
    return StepShape(
        num_decodes, plan.num_verify_rows, plan.num_prefill_rows, num_emitting_prompts, num_kv_tokens, is_uniform
    )


@dataclass(frozen=True, slots=True)
class StepRun:
    """How a target pass runs.

    Attributes:
        num_padded_rows: rows after padding to the captured size; the rows themselves without a graph.
        graph_key: name of the captured graph, None without one.
    """

    mode: StepMode
    num_padded_rows: int
    graph_key: str | None = None


class StepCosts(Protocol):
    """Milliseconds of a step; measured or modelled, injected and versioned.

    Attributes:
        version: grows with each refit.
        decode_graphs: which decode graphs exist.
    """

    @property
    def version(self) -> int: ...

    @property
    def decode_graphs(self) -> DecodeGraphs: ...

    def dispatch(self, shape: StepShape) -> StepRun:
        """The mode such a step runs in, and its padding."""
        ...

    def target_ms(self, shape: StepShape) -> float:
        """The whole step but for the drafter's pass: target pass, sampling, and the host's part."""
        ...

    def draft_ms(self, num_requests: int, num_rows: int) -> float:
        """The drafter's pass for `num_requests` requests of `num_rows` rows in total; 0 for no request."""
        ...
