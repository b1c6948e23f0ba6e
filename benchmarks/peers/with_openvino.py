"""OpenVINO GenAI: its continuous batching pipeline, from the GGUF file as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino_genai.py_openvino_genai import GenerationStatus

from peers.jobs import Job, Setup
from peers.measuring import closed_loop, serve, versions_of

CACHE_GIB = 1


class OpenVINOEngine:
    """See Engine and SteppedEngine."""

    kv_bytes = CACHE_GIB << 30

    def __init__(self, setup: Setup) -> None:
        if not setup.gguf:
            raise RuntimeError("error: the model has no GGUF file")
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = setup.max_num_seqs
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": setup.num_threads}
        self.pipeline: Any = openvino_genai.ContinuousBatchingPipeline(setup.gguf, scheduler, "CPU", properties)
        self.eos_token_ids = setup.eos_token_ids
        self.versions = versions_of("openvino-genai", "openvino")
        self.details = {"weights": "the GGUF's"}
        self._number = 0
        self._running: dict[int, Any] = {}

    def prepare(self, job: Job) -> None:
        """Nothing is kept of earlier jobs."""

    def answer(self, job: Job) -> list[list[int]]:
        """See Engine."""
        return closed_loop(self, job)

    def add(self, index: int, prompt: Sequence[int], job: Job) -> None:
        """See SteppedEngine."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = job.max_new_tokens
        config.ignore_eos = job.ignore_eos
        if not job.ignore_eos:
            config.eos_token_id = self.eos_token_ids[0]
            config.stop_token_ids = set(self.eos_token_ids)
        config.do_sample = job.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p, config.rng_seed = job.temperature, 1.0, index
        self._number += 1
        ids = openvino.Tensor(np.array([prompt], np.int64))
        self._running[index] = self.pipeline.add_request(self._number, ids, config)

    def step(self) -> Iterator[tuple[int, Sequence[int], bool]]:
        """See SteppedEngine."""
        self.pipeline.step()
        for index, handle in list(self._running.items()):
            token_ids = [token_id for output in _read(handle) for token_id in output.generated_ids]
            status = handle.get_status()
            if status not in (GenerationStatus.RUNNING, GenerationStatus.FINISHED):
                raise RuntimeError(f"error: request {index} ended as {status.name}")
            has_ended = status == GenerationStatus.FINISHED
            if has_ended:
                del self._running[index]
            if token_ids or has_ended:
                yield index, token_ids, has_ended

    def acceptance_length(self) -> None:
        """It does not draft."""


def _read(handle: Any) -> Iterator[Any]:
    """What a request gave since it was last read; one sequence each."""
    while handle.can_read():
        yield from handle.read().values()


if __name__ == "__main__":
    serve(OpenVINOEngine)
