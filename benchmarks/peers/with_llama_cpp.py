"""llama.cpp through its own batches, from the GGUF file as it is: prompts and running requests share a batch.

The package's `Llama` answers one prompt at a time; many at a time need the functions below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp

from peers.jobs import Job, Setup
from peers.measuring import closed_loop, serve, versions_of

MAX_BATCH = 512
CONTEXT_UNIT = 256  # tokens; a sequence's context is a multiple
KV_ELEMENT_BYTES = 2


@dataclass(slots=True)
class Running:
    """A request. slot: its sequence in llama.cpp. ids: prompt and answer, `num_cached` of them in the cache."""

    slot: int
    ids: list[int]
    max_len: int
    sampler: Any
    num_cached: int = 0


class LlamaCppEngine:
    """See Engine and SteppedEngine. Each job has a context of its own, for as many sequences as it runs at once."""

    def __init__(self, setup: Setup) -> None:
        if not setup.gguf:
            raise RuntimeError("error: the model has no GGUF file")
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(setup.gguf), parameters)
        if not self.model:
            raise RuntimeError(f"error: llama.cpp cannot load {setup.gguf}")
        self.versions = versions_of("llama-cpp-python")
        self.details = {"weights": "the GGUF's", "processor": llama_cpp.llama_print_system_info().decode()}
        self.kv_bytes: int | None = None
        self._num_threads = setup.num_threads
        self._eos_token_ids = frozenset(setup.eos_token_ids)
        self._batch = llama_cpp.llama_batch_init(MAX_BATCH, 0, 1)
        self._context: Any = None
        self._ends: frozenset[int] = frozenset()
        self._running: dict[int, Running] = {}
        self._free: list[int] = []

    def prepare(self, job: Job) -> None:
        """A fresh context."""
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        length = -(-job.max_model_len // CONTEXT_UNIT) * CONTEXT_UNIT
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = job.concurrency * length
        parameters.n_seq_max = job.concurrency
        parameters.n_batch = parameters.n_ubatch = MAX_BATCH
        parameters.n_threads = parameters.n_threads_batch = self._num_threads
        self._context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self._context:
            raise RuntimeError(f"error: llama.cpp cannot make a context of {parameters.n_ctx} tokens")
        self._ends = frozenset() if job.ignore_eos else self._eos_token_ids
        self._free = list(range(job.concurrency))
        head_dim = llama_cpp.llama_model_n_embd(self.model) // llama_cpp.llama_model_n_head(self.model)
        width = head_dim * llama_cpp.llama_model_n_head_kv(self.model) * llama_cpp.llama_model_n_layer(self.model)
        self.kv_bytes = 2 * width * KV_ELEMENT_BYTES * parameters.n_ctx

    def answer(self, job: Job) -> list[list[int]]:
        """See Engine."""
        return closed_loop(self, job)

    def add(self, index: int, prompt: Sequence[int], job: Job) -> None:
        """See SteppedEngine."""
        sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        if job.temperature:
            llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_temp(job.temperature))
            llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_dist(index))
        else:
            llama_cpp.llama_sampler_chain_add(sampler, llama_cpp.llama_sampler_init_greedy())
        self._running[index] = Running(self._free.pop(), list(prompt), len(prompt) + job.max_new_tokens, sampler)

    def step(self) -> Iterator[tuple[int, Sequence[int], bool]]:
        """See SteppedEngine. Requests that decode come before prompts, which take the rest of the batch."""
        batch, emitting = self._batch, []
        batch.n_tokens = 0
        for index, request in sorted(self._running.items(), key=lambda item: len(item[1].ids) - item[1].num_cached):
            last = min(len(request.ids), request.num_cached + MAX_BATCH - batch.n_tokens)
            for position in range(request.num_cached, last):
                row = batch.n_tokens
                batch.token[row], batch.pos[row] = request.ids[position], position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, request.slot
                batch.logits[row] = position == len(request.ids) - 1
                batch.n_tokens += 1
            request.num_cached = last
            if last == len(request.ids):
                emitting.append((index, request, batch.n_tokens - 1))
        if status := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"error: llama_decode returned {status}")
        for index, request, row in emitting:
            token_id = llama_cpp.llama_sampler_sample(request.sampler, self._context, row)
            request.ids.append(token_id)
            has_ended = len(request.ids) == request.max_len or token_id in self._ends
            if has_ended:
                self._end(index)
            yield index, [token_id], has_ended

    def acceptance_length(self) -> None:
        """It does not draft."""

    def _end(self, index: int) -> None:
        request = self._running.pop(index)
        llama_cpp.llama_sampler_free(request.sampler)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), request.slot, -1, -1)
        self._free.append(request.slot)


if __name__ == "__main__":
    serve(LlamaCppEngine)
