"""ScriptedExecutor: a target whose logits are a pure float64 function of the prefix, read through the KV blocks.

It holds token ids where a model holds keys and values. The prefix of every row is read back through the block table,
so a wrong block, a stale slot or a lost row changes the text, as it would with a real model; drafter KV is kept the
same way under the same block ids. Float64 and pure functions take the excuse of numerics away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.request import Logprobs
from slipstream.scheduler.executor_state import ExecutorState, RequestRows
from slipstream.scheduler.layouts import NO_LAYOUT
from slipstream.scheduler.protocol import (
    Drafter,
    Matchers,
    RequestResult,
    SampledTokens,
    SampleRow,
    StepPlan,
    StepResult,
)

Logits = NDArray[np.float64]
LogitsFunction = Callable[[Sequence[int]], Logits]
RowSampler = Callable[[Logits, Sequence[SampleRow]], SampledTokens]
RowReport = Callable[[Logits, int, int], Logprobs]
"""(logits [V], token id, number of alternatives) -> its log probability."""

_EMPTY = -1
_NOISE = -2


class HashedLogits:
    """Logits that look random but are fixed by the last `window` tokens and the position.

    Args:
        vocab_size: V. seed: another seed is another model. scale: spread of the logits; larger is more certain.
    """

    def __init__(self, vocab_size: int, seed: int = 0, window: int = 3, scale: float = 3.0) -> None:
        self.vocab_size = vocab_size
        self.seed = seed
        self.window = window
        self.scale = scale
        self._known: dict[tuple[int, ...], Logits] = {}

    def __call__(self, prefix: Sequence[int]) -> Logits:
        """Logits [V] of the token after `prefix`."""
        key = (len(prefix), *prefix[-self.window :])
        logits = self._known.get(key)
        if logits is None:
            generator = np.random.default_rng([self.seed, *(int(part) for part in key)])
            logits = generator.standard_normal(self.vocab_size) * self.scale
            self._known[key] = logits
        return logits


def sample_greedily(logits: Logits, rows: Sequence[SampleRow]) -> SampledTokens:
    """The best token of each row [N, V] that its constraint allows; every other parameter of the rows plays no part."""
    chosen: list[int] = []
    for values, row in zip(logits, rows, strict=True):
        allowed = allowed_tokens(row, len(values))
        chosen.append(int((values if allowed is None else np.where(allowed, values, -np.inf)).argmax()))
    return SampledTokens(chosen, [None] * len(rows))


def allowed_tokens(row: SampleRow, vocab_size: int) -> NDArray[np.bool_] | None:
    """Which tokens the row's constraint allows, bool [V]; None for all."""
    bits = None if row.matcher is None else row.matcher.allowed(row.output_token_ids)
    if bits is None:
        return None
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=vocab_size, bitorder="little").astype(np.bool_)


class KVGapError(AssertionError):
    """A row would read or write KV that its request does not own or that was never written."""


class ScriptedExecutor:
    """Runs plans against a logits function.

    Args:
        logits: the target.
        num_kv_blocks, block_size: the pool, as the scheduler has it.
        drafter: proposes drafts; its layout says which drafter KV is written and checked.
        sampler: samples logits rows [N, V]; greedy by default.
        report: log probabilities of prompt tokens; without it they cannot be asked for.
        max_model_len: drafter slots at this position or beyond go to the scratch slot.
        matchers: for requests with a constraint; the sampler must heed them, as `sample_greedily` does.

    Attributes:
        num_model_rows: target rows run so far. plans: not kept; wrap `execute` to record.
        num_draft_passes: drafter passes that ran.
    """

    def __init__(
        self,
        logits: LogitsFunction,
        *,
        num_kv_blocks: int,
        block_size: int,
        drafter: Drafter | None = None,
        sampler: RowSampler = sample_greedily,
        report: RowReport | None = None,
        max_model_len: int = 1 << 30,
        matchers: Matchers | None = None,
    ) -> None:
        self.state = ExecutorState(matchers)
        self.drafter = drafter
        self.num_model_rows = 0
        self.num_draft_passes = 0
        self._logits = logits
        self._sampler = sampler
        self._report = report
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._target_kv = np.full(num_kv_blocks * block_size, _EMPTY, dtype=np.int64)
        self._draft_kv = np.full(num_kv_blocks * block_size, _EMPTY, dtype=np.int64)

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor. Raises KVGapError on any fault of the plan's block accounting."""
        if self.drafter is not None:
            for request_id in plan.released_request_ids:
                self.drafter.release(request_id)
        batch = self.state.begin(plan)
        for rows in batch:
            self._write_rows(rows)
        sample_rows: list[SampleRow] = []
        logits: list[Logits] = []
        for rows in batch:
            first = rows.first_position + len(rows.token_ids) - rows.num_sampled
            for offset, row in enumerate(rows.sample_rows()):
                logits.append(self._logits(self._read_prefix(rows, first + offset + 1)))
                sample_rows.append(row)
        sampled = self._sampler(np.stack(logits), sample_rows) if logits else SampledTokens([], [])
        results = []
        index = 0
        for rows in batch:
            results.append(self.state.accept(rows, sampled, index))
            index += rows.num_sampled
            if rows.reported_token_ids and self._report is not None:
                count = rows.state.sampling.prompt_logprobs or 0
                results[-1].prompt_logprobs = [
                    self._report(
                        self._logits(self._read_prefix(rows, rows.first_position + offset + 1)), token_id, count
                    )
                    for offset, token_id in enumerate(rows.reported_token_ids)
                ]
        num_skipped, num_draft_rows = self._draft(plan, batch, results)
        num_rows = sum(len(rows.token_ids) for rows in batch)
        self.num_model_rows += num_rows
        return StepResult(
            plan.step,
            results,
            mode=plan.mode,
            num_target_rows=num_rows,
            num_draft_query_rows=num_draft_rows,
            num_skipped_drafts=num_skipped,
        )

    def _slots(self, block_ids: list[int], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        blocks = positions // self._block_size
        if len(positions) and blocks[-1] >= len(block_ids):
            raise KVGapError(f"position {positions[-1]} has no KV block; the request owns {len(block_ids)}")
        return np.asarray(block_ids, dtype=np.int64)[blocks] * self._block_size + positions % self._block_size

    def _write_rows(self, rows: RequestRows) -> None:
        if min(rows.token_ids) < 0:
            raise KVGapError(f"a token id below 0 reached the model: {rows.token_ids}")
        last = rows.first_position + len(rows.token_ids)
        if last > self._max_model_len:
            raise KVGapError(f"a row at position {last - 1} with max_model_len {self._max_model_len}")
        positions = np.arange(rows.first_position, last)
        slots = self._slots(rows.state.block_ids, positions)
        self._target_kv[slots] = rows.token_ids
        if self._keeps_draft_kv():
            self._draft_kv[slots] = rows.token_ids

    def _read_prefix(self, rows: RequestRows, length: int) -> list[int]:
        slots = self._slots(rows.state.block_ids, np.arange(length))
        prefix: list[int] = self._target_kv[slots].tolist()
        if min(prefix) < 0:
            raise KVGapError(f"request {rows.state.request_id!r} reads KV that was never written")
        return prefix

    def _keeps_draft_kv(self) -> bool:
        layout = self.drafter.layout if self.drafter is not None else NO_LAYOUT
        return layout.has_context_rows or layout.carries_target_rows

    def _draft(self, plan: StepPlan, batch: list[RequestRows], results: list[RequestResult]) -> tuple[int, int]:
        """Run the drafter; gives how many drafting requests were skipped, and the rows of its pass."""
        if self.drafter is None:
            return 0, 0
        layout = self.drafter.layout
        num_skipped = num_draft_rows = 0
        chosen = []
        for rows, result in zip(batch, results, strict=True):
            request = self.state.draft_request(rows)
            if request is None:
                num_skipped += bool(rows.scheduled.num_draft_tokens)
                num_draft_rows += layout.draft_query_rows(len(rows.token_ids), 0)
                continue
            self._check_draft_kv(rows, layout.lookahead_slots(request.num_draft_tokens))
            num_draft_rows += layout.draft_query_rows(len(rows.token_ids), request.num_draft_tokens)
            chosen.append((rows, result, request))
        if chosen:
            self.num_draft_passes += 1
            blocks = self.drafter.propose([request for _, _, request in chosen])
            for (rows, result, _), block in zip(chosen, blocks, strict=True):
                self.state.keep_drafts(rows, result, block, plan.step)
        return num_skipped, num_draft_rows

    def _check_draft_kv(self, rows: RequestRows, num_slots: int) -> None:
        """The drafter's KV must be complete up to the anchor, and its lookahead slots must belong to the request."""
        if not self._keeps_draft_kv():
            return
        state = rows.state
        anchor = len(state.token_ids) - 1
        context = self._draft_kv[self._slots(state.block_ids, np.arange(anchor))]
        if context.tolist() != state.token_ids[:anchor]:
            raise KVGapError(f"request {state.request_id!r}: the drafter's KV differs from the committed tokens")
        last = min(anchor + num_slots, self._max_model_len)
        self._draft_kv[self._slots(state.block_ids, np.arange(anchor, last))] = _NOISE
