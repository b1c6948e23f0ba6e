"""transformers: `generate` on batches of prompts, padded on the left; a batch ends with its longest answer."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from peers.jobs import Job, Setup
from peers.measuring import serve, versions_of


class TransformersEngine:
    """See Engine."""

    kv_bytes = None

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.num_threads)
        self.model: Any = AutoModelForCausalLM.from_pretrained(setup.folder, dtype=getattr(torch, setup.dtype)).eval()
        self.eos_token_ids = setup.eos_token_ids
        self.versions = versions_of("transformers", "torch")
        self.details = {"weights": setup.dtype}

    def prepare(self, job: Job) -> None:
        """Seeds the draws."""
        torch.manual_seed(0)

    @torch.inference_mode()
    def answer(self, job: Job) -> list[list[int]]:
        """See Engine."""
        self.model.generation_config.eos_token_id = None if job.ignore_eos else self.eos_token_ids
        sampling = {"do_sample": False}
        if job.temperature:
            sampling = {"do_sample": True, "temperature": job.temperature, "top_k": 0, "top_p": 1.0}
        answers = []
        for first in range(0, len(job.prompts), job.concurrency):
            ids, mask = padded(job.prompts[first : first + job.concurrency])
            output = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=job.max_new_tokens, pad_token_id=0, **sampling
            )
            answers += output[:, ids.shape[1] :].tolist()
        return answers

    def acceptance_length(self) -> None:
        """It does not draft."""


def padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, [B, longest]."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


if __name__ == "__main__":
    serve(TransformersEngine)
