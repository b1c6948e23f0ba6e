"""The embedded model against transformers: the same weights in float32, 30 prompts, 64 greedy tokens, no drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from execution.running import request, run

from slipstream.config import EMBEDDED_MODEL, ModelSettings, SchedulerConfig
from slipstream.execution.build import build_executor
from slipstream.models.config import ModelLoadError
from slipstream.models.loading import ModelSource, open_model

NUM_PROMPTS, NUM_TOKENS = 30, 64
SHARED_PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "prompts"
TOPICS = ("the tides", "a lighthouse keeper", "prime numbers", "baking bread", "a heap sort", "the French Revolution")
TASKS = (
    "Explain {} to a child.",
    "Write a short poem about {}.",
    "List five facts about {}, numbered.",
    "Write a Python function that has something to do with {}.",
    "Compare {} with the moon: what do they share, and what not? Answer in one paragraph.",
)


def prompts() -> list[str]:
    """First turns of the shared prompt sets, as many of each; our own where those are absent."""
    files = sorted(SHARED_PROMPTS.glob("*.jsonl"))
    if not files:
        return [task.format(topic) for task in TASKS for topic in TOPICS]
    texts = []
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        texts += [json.loads(line)["turns"][0] for line in lines[: -(-NUM_PROMPTS // len(files))]]
    return texts[:NUM_PROMPTS]


def oracle(source: ModelSource, weights: dict[str, torch.Tensor]) -> Any:
    """transformers' model of the same shape and weights."""
    transformers = pytest.importorskip("transformers")
    config = source.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=config.max_position,
            tie_word_embeddings=config.tie_word_embeddings,
        )
    )
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing in ([], ["lm_head.weight"])
    model.tie_weights()
    return model.eval()


@torch.inference_mode()
def first_difference(model: Any, prompt: list[int], text: list[int]) -> tuple[int, float] | None:
    """Where transformers' greedy text first differs from `text`, and the gap of its two best logits there.

    One pass over prompt and text tells: up to the first position whose argmax is another token, both texts are equal.
    """
    logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    for position, expected in enumerate(logits.argmax(-1).tolist()):
        if expected != text[position]:
            best = logits[position].topk(2).values
            return position, float(best[0] - best[1])
    return None


@pytest.fixture(scope="module")
def source() -> ModelSource:
    try:
        return open_model(EMBEDDED_MODEL, progress=False)
    except ModelLoadError as error:
        pytest.skip(f"the embedded model is not here and cannot be fetched: {error}")


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_greedy_texts_equal_transformers(source: ModelSource) -> None:
    template = source.chat_template
    texts = prompts()
    assert len(texts) == NUM_PROMPTS
    ids = []
    for i, text in enumerate(texts):  # chat prompts and bare ones by turns
        if template is not None and i % 3:
            text = template.render([{"role": "user", "content": text}], add_generation_prompt=True)
        ids.append(source.tokenizer.encode(text)[:300])

    longest = max(len(prompt) for prompt in ids) + NUM_TOKENS
    settings = ModelSettings(dtype="float32", device="cpu", max_model_len=longest)
    num_blocks = NUM_PROMPTS * (longest // 16 + 1)
    executor = build_executor(source, settings, num_kv_blocks=num_blocks, block_size=16)
    config = SchedulerConfig(
        max_num_batched_tokens=256,
        max_num_seqs=NUM_PROMPTS,
        max_model_len=longest,
        block_size=16,
        num_kv_blocks=num_blocks,
    )
    done = run(executor, config, [request(f"p{i}", prompt, max_tokens=NUM_TOKENS) for i, prompt in enumerate(ids)])
    assert max(len(plan.requests) for plan in done.plans) == NUM_PROMPTS  # all were batched

    model = oracle(source, source.load_weights(torch.float32, "cpu"))
    different = {}
    for i, prompt in enumerate(ids):
        text = done.texts[f"p{i}"]
        assert len(text) == NUM_TOKENS
        difference = first_difference(model, prompt, text)
        if difference is not None:
            different[i] = difference
    assert len(different) <= 1, different
    assert all(gap < 1e-4 for _, gap in different.values()), different
