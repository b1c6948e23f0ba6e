"""Drive a TorchExecutor with the real scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import driver
from models.tiny_models import write_tiny_hf_model

from slipstream.config import ModelSettings, SchedulerConfig
from slipstream.execution.build import build_decoder
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model
from slipstream.request import Request, RequestOutput, SamplingParams
from slipstream.scheduler.protocol import Drafter, StepPlan, StepResult
from slipstream.scheduler.scheduler import Scheduler

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
    decoder = build_decoder(source, settings)
    return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size, drafter=drafter)


@dataclass
class Run:
    """What came of a run: the driver's record, by request."""

    scheduler: Scheduler
    driven: driver.Run

    @property
    def texts(self) -> dict[str, list[int]]:
        return self.driven.token_ids

    @property
    def outputs(self) -> dict[str, list[RequestOutput]]:
        by_request: dict[str, list[RequestOutput]] = {}
        for output in self.driven.outputs:
            by_request.setdefault(output.request_id, []).append(output)
        return by_request

    @property
    def plans(self) -> list[StepPlan]:
        return self.driven.plans

    @property
    def results(self) -> list[StepResult]:
        return self.driven.results

    @property
    def num_verified(self) -> int:
        return self.scheduler.statistics.num_verified_tokens

    @property
    def num_accepted(self) -> int:
        return self.scheduler.statistics.num_accepted_tokens


def scheduler_config(*, k: int = 0, num_kv_blocks: int = 64, **other: Any) -> SchedulerConfig:
    """The driver's small defaults; D always suffices."""
    return driver.make_config(num_speculative_tokens=k, num_kv_blocks=num_kv_blocks, **other)


def run(
    executor: TorchExecutor,
    config: SchedulerConfig,
    requests: Sequence[Request],
    *,
    lag: int = 0,
    before_step: Callable[[int, Scheduler], None] | None = None,
) -> Run:
    """Serve all requests to their end; the invariants are checked at every step."""
    scheduler = Scheduler(config)
    notify = None if before_step is None else (lambda step: before_step(step, scheduler))
    return Run(scheduler, driver.drive(scheduler, executor, requests, lag=lag, before_step=notify))


def request(name: str, prompt: Sequence[int], *, seed: int = 1, eos: Sequence[int] = (), **sampling: object) -> Request:
    """Greedy unless told otherwise."""
    values = {"temperature": 0.0, "max_tokens": 24} | sampling
    return Request(name, prompt, SamplingParams(**values), seed=seed, eos_token_ids=eos)  # type: ignore[arg-type]
