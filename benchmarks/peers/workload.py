"""The jobs of a benchmark: which prompts, how many at a time, and how they are answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peers.jobs import Job, Setup
from slipstream.bench.dataset import cut_to_length

MIN_PROMPTS, MAX_ROUNDS_PROMPTS = 4, 64
PREFILL_PROMPTS, PREFILL_LENGTH = 4, 1000
PREFILL = "prefill"

Prompts = Sequence[Sequence[int]]


def num_prompts(concurrency: int) -> int:
    """Twice as many as run at once, at least MIN_PROMPTS; where that is more than MAX_ROUNDS_PROMPTS, one round."""
    return max(MIN_PROMPTS, min(2 * concurrency, MAX_ROUNDS_PROMPTS), concurrency)


def decoding_jobs(
    sets: Mapping[str, Prompts],
    concurrencies: Sequence[int],
    *,
    max_new_tokens: int,
    ignore_eos: bool,
    temperature: float = 0.0,
    limit: int | None = None,
) -> list[Job]:
    """One job for each set and concurrency. limit: most prompts of a job."""
    conditions = f"EOS {'ignored' if ignore_eos else 'respected'}, T = {temperature:g}"
    return [
        Job(
            name=f"{name}, {conditions}",
            prompts=[list(prompt) for prompt in prompts[: min(num_prompts(concurrency), limit or len(prompts))]],
            max_new_tokens=max_new_tokens,
            concurrency=concurrency,
            ignore_eos=ignore_eos,
            temperature=temperature,
        )
        for name, prompts in sets.items()
        for concurrency in concurrencies
    ]


def prefill_job(prompts: Prompts, limit: int | None = None) -> Job:
    """Prompts of PREFILL_LENGTH tokens, cut from others laid end to end, answered with one token, one at a time."""
    count = min(PREFILL_PROMPTS, limit or PREFILL_PROMPTS)
    cut = cut_to_length("", prompts, count, PREFILL_LENGTH)
    return Job(
        name=PREFILL,
        prompts=[list(prompt.token_ids or ()) for prompt in cut.prompts],
        max_new_tokens=1,
        concurrency=1,
        ignore_eos=True,
    )


def setup_for(
    jobs: Sequence[Job],
    *,
    model: str,
    gguf: str,
    folder: str,
    dtype: str,
    num_threads: int,
    eos_token_ids: Sequence[int],
) -> Setup:
    """What systems load, as large as the jobs need."""
    return Setup(
        model=model,
        gguf=gguf,
        folder=folder,
        dtype=dtype,
        num_threads=num_threads,
        max_num_seqs=max(job.concurrency for job in jobs),
        max_model_len=max(job.max_model_len for job in jobs),
        kv_tokens=max(job.kv_tokens for job in jobs),
        eos_token_ids=list(eos_token_ids),
    )
