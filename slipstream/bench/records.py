"""What a benchmark run writes down: requests as a client saw them, steps as the engine ran them.

All times are seconds on one clock, whose zero is the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.bench.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of streamed output.

    Attributes:
        time: when it arrived.
        num_tokens: tokens in it; None where only the server knows (a chunk is a step's output, not a token).
        num_drafted: accepted drafts among them; None likewise.
    """

    time: float
    num_tokens: int | None = None
    num_drafted: int | None = None


@dataclass(slots=True)
class RequestRecord:
    """One request, failed ones included.

    Attributes:
        index: position in the workload; equal indices are equal prompts in every run.
        scheduled_time: when the arrival process released it.
        sent_time: when it was sent; later than `scheduled_time` only where a concurrency limit held it back.
        num_prompt_tokens, num_output_tokens: the server's usage counts; never the number of chunks.
        chunks: those that carried output, in order; reasoning and tool-call pieces count.
        coalesced_chunks: chunks that shared a network read with the one before, so their gap reads as 0.
        token_ids: output ids, in process only. text: output text, over HTTP only.
        error: why it failed; None for a served request.
    """

    index: int
    scheduled_time: float
    sent_time: float
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    coalesced_chunks: int = 0
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None

    @property
    def end_time(self) -> float:
        """Arrival of the last output; the sending time where nothing came."""
        return self.chunks[-1].time if self.chunks else self.sent_time


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step.

    Attributes:
        kind: `decode` (pure), `prefill` or `mixed`. mode: how the target's pass ran.
        start_time, duration_s: of schedule, execute and commit together.
        num_running: requests that hold a seat while the step runs. num_waiting: requests queued behind them.
        num_target_rows: rows of the target's pass, of which prompt and verify rows are given too.
        target_ms, draft_ms: the executor's own times of the two passes.
        num_requests: those that the step serves; 0 where nobody counted.
    """

    kind: str
    mode: str
    start_time: float
    duration_s: float
    num_running: int
    num_waiting: int
    num_target_rows: int
    num_prefill_rows: int
    num_verify_rows: int
    num_draft_query_rows: int
    target_ms: float
    draft_ms: float
    num_requests: int = 0


@dataclass(slots=True)
class RunRecord:
    """Everything one run wrote down.

    Attributes:
        duration_s: from the first request's sending to the last output.
        steps: empty over HTTP, where nobody outside the server sees steps.
        acceptance: None where nothing was counted.
        step_counts: engine steps by kind, where a server's counters tell no more.
    """

    requests: list[RequestRecord]
    duration_s: float
    steps: list[StepRecord] = field(default_factory=list)
    acceptance: Acceptance | None = None
    step_counts: dict[str, int] | None = None
