"""`slipstream generate`: one prompt, streamed to the terminal."""

from __future__ import annotations

import sys

from slipstream.config import Settings
from slipstream.engine.build import build_engine
from slipstream.engine.llm import LLM, GenerationError
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.request import FinishReason, SamplingParams


def generate(
    settings: Settings,
    prompt: str,
    sampling: SamplingParams,
    *,
    raw: bool,
    system: str | None,
) -> None:
    """Write the answer to standard output as it is made, and what it took to standard error.

    Args:
        raw: continue the prompt as it stands, without the chat template.
        system: system message of the chat.
    """
    llm = LLM.from_engine(build_engine(settings, progress=True))
    if raw:
        prompt_token_ids = llm.encode(prompt)
    else:
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        prompt_token_ids = llm.encode_chat(messages)
    with llm.start(prompt_token_ids, sampling) as generation:
        for delta in generation:
            if delta.finish_reason is FinishReason.ERROR:
                raise GenerationError(delta.error or "the engine failed")
            sys.stdout.write(delta.text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stderr.write(summary(generation.metrics) + "\n")


def summary(metrics: RequestMetrics) -> str:
    """One line: tokens, speed, what speculation gave."""
    parts = [f"{metrics.num_output_tokens} tokens"]
    if metrics.time_to_first_token is not None:
        parts.append(f"first after {metrics.time_to_first_token:.2f} s")
    if metrics.time_per_output_token:
        parts.append(f"then {1 / metrics.time_per_output_token:.1f} tokens/s")
    if metrics.num_verified:
        parts.append(
            f"drafts: {metrics.num_accepted} of {metrics.num_verified} accepted, "
            f"{metrics.num_output_tokens / metrics.num_steps:.2f} tokens per step"
        )
    else:
        parts.append("no drafts verified")
    return "[" + ", ".join(parts) + f", seed {metrics.seed}]"
