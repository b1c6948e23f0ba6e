"""What a step costs, as policies, simulator and runner ask it: one description of a step, one protocol (design 4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from slipstream.scheduler.protocol import StepMode, StepPlan, StepResult


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
        num_prompts: requests with a prompt chunk; who does not know leaves 0 (see `num_requests`).
        num_attended: rows times the tokens they may look at, summed over requests: a request's rows times its tokens
            up to its last row. Who does not know leaves 0 (see `num_pairs`).
    """

    num_decodes: int
    num_verify_rows: int = 0
    num_prompt_rows: int = 0
    num_emitting_prompts: int = 0
    num_kv_tokens: int = 0
    is_uniform: bool = True
    num_prompts: int = 0
    num_attended: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of the target's pass."""
        return self.num_decodes + self.num_verify_rows + self.num_prompt_rows

    @property
    def num_sampled_rows(self) -> int:
        """Rows whose logits are computed and sampled."""
        return self.num_decodes + self.num_verify_rows + self.num_emitting_prompts

    @property
    def num_requests(self) -> int:
        """Requests that the pass serves; at least as many as the other numbers show."""
        return self.num_decodes + max(self.num_prompts, self.num_emitting_prompts, self.num_prompt_rows > 0)

    @property
    def num_pairs(self) -> int:
        """Pairs of a row and a token it may look at; at least one row reads each token."""
        return max(self.num_attended, self.num_kv_tokens)


def shape_of(plan: StepPlan, result: StepResult | None = None) -> StepShape:
    """The shape of a plan, as far as its upper bounds tell; with its result, of what really ran."""
    num_decodes = num_verify_rows = num_emitting_prompts = num_prompts = num_kv_tokens = num_attended = 0
    first_rows, is_uniform = 0, True
    for index, entry in enumerate(plan.requests):
        rows = entry.num_target_rows
        if entry.is_prefill:
            num_prompts += 1
            num_emitting_prompts += entry.emits
        else:
            if result is not None:
                rows = rows - entry.num_verify_rows + result.results[index].num_verified
            num_decodes += 1
            num_verify_rows += rows - 1
            first_rows = first_rows or rows
            is_uniform = is_uniform and rows == first_rows
        num_tokens = entry.num_computed_tokens + rows
        num_kv_tokens += num_tokens
        num_attended += rows * num_tokens
    return StepShape(
        num_decodes,
        num_verify_rows,
        plan.num_prefill_rows,
        num_emitting_prompts,
        num_kv_tokens,
        is_uniform,
        num_prompts,
        num_attended,
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
