"""StepProbe: runs a TorchExecutor on chosen passes and times them, and leaves nothing behind in it."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

from slipstream.engine.engine import Engine
from slipstream.engine.messages import Submission
from slipstream.engine.profile_shapes import PassShape
from slipstream.execution.executor import TorchExecutor
from slipstream.execution.sampling import make_sampler
from slipstream.request import SamplingParams
from slipstream.scheduler.protocol import NewRequest, SampleRow, ScheduledRequest, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler

TOKEN_ID = 0
NUM_HOST_STEPS = 3
DRAFT_CONTEXT = 64
_OUTPUT_TOKENS = 64  # more than any probed request emits


class StepProbe:
    """Makes plans by hand. Blocks are used from 0 up: nobody else may use the executor meanwhile.

    Passes are chunks that do not emit: their rows cost what rows of decodes and drafts cost, but for sampling, which is
    timed apart.

    Args:
        temperature: of sampled rows.
    """

    def __init__(self, executor: TorchExecutor, *, temperature: float = 0.0) -> None:
        self._executor = executor
        self._decoder = executor.decoder
        self._block_size = executor.cache.block_size
        self._sampling = SamplingParams(temperature=temperature, max_tokens=_OUTPUT_TOKENS, ignore_eos=True)
        self._sampler = make_sampler(self._decoder)
        self._step = 0
        self._ids: set[str] = set()
        self._written_blocks = 0

    @property
    def tile_rows(self) -> int | None:
        """Rows of the tiles that the target's rows run in; None where they run together."""
        return self._decoder.tile_rows

    @property
    def has_drafter(self) -> bool:
        """Whether there is anything to draft with."""
        return self._executor.drafter is not None

    def pass_ms(self, shape: PassShape) -> float:
        """The target's pass over such chunks."""
        self._take_memory(shape.num_blocks(self._block_size))
        plan = self._plan(shape, emits=False)
        return self._timed(lambda: self._executor.execute(plan))

    def sampling_ms(self, num_rows: int) -> float:
        """Logits and sampling of so many rows."""
        decoder = self._decoder
        hidden = torch.zeros((num_rows, decoder.config.hidden_size), dtype=decoder.dtype, device=decoder.device)
        rows = [SampleRow(self._sampling, 0, 0, frozenset(), [TOKEN_ID], 1, [], 0) for _ in range(num_rows)]
        return self._timed(lambda: self._sample(hidden, rows))

    def draft_ms(self, num_requests: int, num_drafts: int, num_query_rows: int) -> float:
        """The drafter's pass in a step of decodes; each request had drafted before."""
        plan = self._plan(PassShape((1,) * num_requests, DRAFT_CONTEXT), emits=True, drafts=num_drafts)
        for entry in plan.requests:
            entry.num_draft_query_rows = num_query_rows
        self._executor.execute(plan)
        self._step += 1
        again = [
            dataclasses.replace(
                entry,
                num_computed_tokens=entry.num_computed_tokens + 1,
                is_prefill=False,
                new_block_ids=(),
            )
            for entry in plan.requests
        ]
        return self._executor.execute(StepPlan(self._step, again)).draft_ms

    def host_ms(self, scheduler: Scheduler, num_requests: int) -> float:
        """What a step of decodes takes outside the executor: the middle of a few, served by a scheduler of its own."""
        executor = _Timed(self._executor)
        engine = Engine(scheduler, executor, clock=time.perf_counter)
        sampling = dataclasses.replace(self._sampling, max_tokens=None)
        for number in range(num_requests):
            engine.add_request(Submission(f"profile-host-{number}", (TOKEN_ID,), sampling, 0))
        host = []
        for _ in range(1 + NUM_HOST_STEPS):
            begin = time.perf_counter()
            engine.step()
            host.append((time.perf_counter() - begin) * 1e3 - executor.ms)
            if not engine.has_work():  # a pool of a few tokens
                break
        for number in range(num_requests):
            engine.abort(f"profile-host-{number}")
        self._executor.execute(scheduler.schedule(time.perf_counter()))  # it forgets them
        return statistics.median(host[1:] or host)  # the first has the prompts

    def close(self) -> None:
        """Make the executor and its drafter forget everything."""
        self._executor.execute(StepPlan(self._step, [], released_request_ids=sorted(self._ids)))
        self._ids.clear()

    def _plan(self, shape: PassShape, *, emits: bool, drafts: int = 0) -> StepPlan:
        plan = StepPlan(self._step, [])
        next_block = 0
        for index, rows in enumerate(shape.rows):
            request_id = f"profile-{index}"
            self._ids.add(request_id)
            length = shape.context + rows
            num_blocks = -(-(length + emits * draft_slots(drafts)) // self._block_size)
            block_ids = range(next_block, next_block + num_blocks)
            next_block += num_blocks
            plan.new_requests.append(
                NewRequest(request_id, 0, [TOKEN_ID] * length, length, self._sampling, 0, 0, length + _OUTPUT_TOKENS)
            )
            plan.requests.append(
                ScheduledRequest(request_id, 0, shape.context, rows, 0, -1, True, emits, drafts, 0, block_ids)
            )
        self._step += 1
        return plan

    def _take_memory(self, num_blocks: int) -> None:
        """Write the blocks once: memory that was never written is one page of zeros, and reads far too fast."""
        if num_blocks > self._written_blocks:
            for layer in self._executor.cache.layers:
                layer[self._written_blocks : num_blocks].zero_()
            self._written_blocks = num_blocks

    @torch.inference_mode()
    def _sample(self, hidden: torch.Tensor, rows: list[SampleRow]) -> None:
        self._sampler.sample(self._decoder.compute_logits(hidden), rows)

    def _timed(self, run: Callable[[], object]) -> float:
        begin = time.perf_counter()
        run()
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)
        return (time.perf_counter() - begin) * 1e3


def draft_slots(num_drafts: int) -> int:
    """KV slots behind the context of a request whose draft pass is timed: two tokens, and what its drafter writes."""
    return num_drafts + 3


class _Timed:
    """An Executor that notes how long its last step took."""

    def __init__(self, executor: TorchExecutor) -> None:
        self.ms = 0.0
        self._executor = executor

    def execute(self, plan: StepPlan) -> StepResult:
        begin = time.perf_counter()
        result = self._executor.execute(plan)
        self.ms = (time.perf_counter() - begin) * 1e3
        return result
