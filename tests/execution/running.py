"""Drive a TorchExecutor with the real scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.tiny_models import write_tiny_hf_model

from slipstream.config import ModelSettings, SchedulerConfig
from slipstream.execution.build import build_executor
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model
from slipstream.request import Request, RequestOutput, SamplingParams
from slipstream.scheduler.protocol import Drafter, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.invariants import InvariantChecker

VOCAB_SIZE = 267  # of the tiny tokenizer


def tiny_executor(
    directory: Path,
    architecture: str = "llama",
    *,
    drafter: Drafter | None = None,
    batch_invariant: bool = True,
    num_kv_blocks: int = 64,
    block_size: int = 16,
    dtype: str = "float32",
) -> TorchExecutor:
    """A random model written to a directory and opened like any other."""
    if not (directory / "config.json").is_file():
        write_tiny_hf_model(directory, architecture)
    settings = ModelSettings(
        dtype=dtype, device="cpu", batch_invariant=batch_invariant, max_model_len=256, num_threads=1
    )
    source = open_model(str(directory), progress=False)
    return build_executor(source, settings, num_kv_blocks=num_kv_blocks, block_size=block_size, drafter=drafter)


@dataclass
class Run:
    """What came of a run.

    Attributes:
        texts: output ids by request.
        plans, results: every step.
    """

    scheduler: Scheduler
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)

    @property
    def texts(self) -> dict[str, list[int]]:
        return {name: [t for output in outputs for t in output.new_token_ids] for name, outputs in self.outputs.items()}

    @property
    def num_verified(self) -> int:
        return self.scheduler.statistics.num_verified_tokens

    @property
    def num_accepted(self) -> int:
        return self.scheduler.statistics.num_accepted_tokens


def scheduler_config(
    *,
    k: int = 0,
    max_num_batched_tokens: int = 64,
    max_num_seqs: int = 8,
    num_kv_blocks: int = 64,
    block_size: int = 16,
    enable_prefix_caching: bool = True,
    max_model_len: int = 256,
    layout_name: str = "ngram",
) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        block_size=block_size,
        num_kv_blocks=num_kv_blocks,
        enable_prefix_caching=enable_prefix_caching,
        layout_name=layout_name,
        num_speculative_tokens=k,
        draft_capacity=max_num_seqs * (k + 1) + max_num_batched_tokens,
    )


def run(
    executor: TorchExecutor,
    config: SchedulerConfig,
    requests: Sequence[Request],
    *,
    lag: int = 0,
    before_step: Callable[[int, Scheduler], None] | None = None,
    max_steps: int = 5000,
) -> Run:
    """Serve all requests to their end; the invariants are checked at every step."""
    scheduler = Scheduler(config)
    checker = InvariantChecker(scheduler)
    done = Run(scheduler)
    for request in requests:
        scheduler.add_request(request)
        done.outputs[request.request_id] = []
    in_flight: list[tuple[StepPlan, StepResult]] = []
    for step in range(max_steps):
        if not scheduler.has_work() and not in_flight:
            return done
        if before_step is not None:
            before_step(step, scheduler)
        plan = scheduler.schedule(float(step))
        if plan.requests:
            checker.check_plan(plan)
            result = executor.execute(plan)
            done.plans.append(plan)
            done.results.append(result)
            in_flight.append((plan, result))
        if in_flight and (len(in_flight) > lag or not plan.requests):
            for output in scheduler.commit(*in_flight.pop(0)):
                done.outputs[output.request_id].append(output)
            checker.check_pool()
    raise AssertionError(f"not done after {max_steps} steps")


def request(name: str, prompt: Sequence[int], *, seed: int = 1, eos: Sequence[int] = (), **sampling: object) -> Request:
    """Greedy unless told otherwise."""
    values = {"temperature": 0.0, "max_tokens": 24} | sampling
    return Request(name, prompt, SamplingParams(**values), seed=seed, eos_token_ids=eos)  # type: ignore[arg-type]
