"""TorchExecutor: runs step plans on a real model."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.execution.drafting import DraftPass, SafeDrafter
from slipstream.execution.input_batch import InputBatch, build_input_batch
from slipstream.execution.sampling import make_sampler
from slipstream.models.protocol import TransformerDecoder
from slipstream.request import Logprobs
from slipstream.sampling.logprobs import row_logprobs
from slipstream.sampling.rejection import DistributionCheck
from slipstream.sampling.sampler import NO_LOGITS, LogitsError
from slipstream.scheduler.executor_state import ExecutorState, RequestRows
from slipstream.scheduler.protocol import (
    Drafter,
    Matchers,
    RequestResult,
    SampledTokens,
    StepMode,
    StepPlan,
    StepResult,
)
from slipstream.speculation.serving import TargetObserver, TargetStates

logger = logging.getLogger(__name__)

REPORTED_ROWS = 128
"""Prompt rows whose logits are held at once where log probabilities of the prompt are wanted."""


class TorchExecutor:
    """An Executor over a decoder and its KV cache.

    Committed tokens, block tables and drafts live here, so a plan made before the last commit (lag 1) finds what it
    needs. The host waits for the device once per step, where sampled tokens are read.

    Args:
        observer: what must see every pass of the target, for drafters that read its states.
        needs_distributions: the textbook rule is asked for, so a block must say what its drafts were drawn from.
        matchers: for requests with a constraint.

    Attributes:
        drafter: None without speculation.
        sampler: draws every token; another may take its place between steps, to listen.
    """

    def __init__(
        self,
        decoder: TransformerDecoder,
        *,
        num_kv_blocks: int,
        block_size: int,
        drafter: Drafter | None = None,
        observer: TargetObserver | None = None,
        needs_distributions: bool = False,
        matchers: Matchers | None = None,
    ) -> None:
        self.decoder = decoder
        self.cache = decoder.make_cache(num_kv_blocks, block_size)
        vocab_size = decoder.config.vocab_size
        check = DistributionCheck(vocab_size, decoder.device) if needs_distributions else None
        self.drafter = None if drafter is None else SafeDrafter(drafter, vocab_size, observer, check)
        self._state = ExecutorState(matchers)
        self.sampler = make_sampler(decoder)

    @property
    def draft_failures(self) -> Mapping[str, int]:
        """Drafter faults so far, by reason."""
        return {} if self.drafter is None else self.drafter.failures

    def execute(self, plan: StepPlan) -> StepResult:
        """See Executor. The target's pass, sampling and acceptance, then the draft pass."""
        begin = time.perf_counter()
        if self.drafter is not None:
            for request_id in plan.released_request_ids:
                self.drafter.release(request_id)
        batch = self._state.begin(plan)
        results = self._run_target(batch) if batch else []
        middle = time.perf_counter()
        drafted = DraftPass()
        if self.drafter is not None:
            drafted = self.drafter.run(self._state, batch, results, plan.step)
        return StepResult(
            plan.step,
            results,
            mode=StepMode.EAGER,
            num_target_rows=sum(len(rows.token_ids) for rows in batch),
            num_draft_query_rows=drafted.num_query_rows,
            num_skipped_drafts=drafted.num_skipped,
            target_ms=(middle - begin) * 1e3,
            draft_ms=(time.perf_counter() - middle) * 1e3,
        )

    def _run_target(self, batch: list[RequestRows]) -> list[RequestResult]:
        decoder = self.decoder
        inputs = build_input_batch(batch, self.cache.block_size, self.cache.scratch_block, decoder.device)
        tapped = () if self.drafter is None else self.drafter.tapped_layers
        output = decoder.forward(inputs.token_ids, inputs.metadata, self.cache, tapped)
        if self.drafter is not None:
            self.drafter.observe(TargetStates(inputs.token_ids, output.layer_hidden, inputs.metadata))
        sampled, bad_rows = SampledTokens([], []), dict[int, str]()
        if inputs.sample_rows:
            hidden = output.hidden
            if len(inputs.sample_rows) != hidden.shape[0]:
                hidden = hidden.index_select(0, inputs.sampled_rows)
            sampled, bad_rows = self._sample(decoder.compute_logits(hidden), inputs)
        results = []
        first = first_row = 0
        for rows in batch:
            fault = next((bad_rows[i] for i in range(first, first + rows.num_sampled) if i in bad_rows), None)
            if fault is not None:
                results.append(_failed(rows, fault))
            else:
                results.append(self._state.accept(rows, sampled, first))
                if rows.reported_token_ids:
                    self._report_prompt(rows, results[-1], output.hidden[first_row:])
            first += rows.num_sampled
            first_row += len(rows.token_ids)
        return results

    @torch.inference_mode()
    def _report_prompt(self, rows: RequestRows, result: RequestResult, hidden: Tensor) -> None:
        """Log probabilities of known prompt tokens; `hidden` begins with the request's rows."""
        count = rows.state.sampling.prompt_logprobs or 0
        entries: list[Logprobs] = []
        for start in range(0, len(rows.reported_token_ids), REPORTED_ROWS):
            token_ids = rows.reported_token_ids[start : start + REPORTED_ROWS]
            logits = self.decoder.compute_logits(hidden[start : start + len(token_ids)])
            if not bool(logits.isfinite().any(-1).all()):
                result.error = NO_LOGITS
                return
            # A broken logit is no reason to give none of the others.
            logits = torch.nan_to_num(logits.float(), nan=-math.inf, posinf=torch.finfo(torch.float32).max)
            entries += [row_logprobs(row, token_id, count) for row, token_id in zip(logits, token_ids, strict=True)]
        result.prompt_logprobs = entries

    @torch.inference_mode()
    def _sample(self, logits: Tensor, inputs: InputBatch) -> tuple[SampledTokens, dict[int, str]]:
        """The sampled tokens, and what is wrong with rows that gave none."""
        try:
            return self.sampler.sample(logits, inputs.sample_rows), {}
        except LogitsError as error:
            logger.error("%s", error)
            bad = error.reasons
        good = [i for i in range(len(inputs.sample_rows)) if i not in bad]
        rows = [inputs.sample_rows[i] for i in good]
        part = self.sampler.sample(logits[torch.tensor(good, dtype=torch.int64, device=logits.device)], rows)
        token_ids = [0] * len(inputs.sample_rows)
        logprobs: list[Logprobs | None] = [None] * len(inputs.sample_rows)
        for i, token_id, entry in zip(good, part.token_ids, part.logprobs, strict=True):
            token_ids[i], logprobs[i] = token_id, entry
        return SampledTokens(token_ids, logprobs), bad


def _failed(rows: RequestRows, reason: str) -> RequestResult:
    return RequestResult(rows.scheduled.request_id, rows.scheduled.epoch, [], error=reason)
