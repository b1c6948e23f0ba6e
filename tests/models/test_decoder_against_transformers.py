"""Tiny random models of every supported shape against transformers, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models.decoder_helpers import SHAPES, Sequences, config_json, random_tokens, tiny_decoder
from models.tiny_models import tiny_weights

transformers = pytest.importorskip("transformers")


def oracle(shape: str) -> Any:
    """The same weights in transformers."""
    config = dict(config_json(shape))
    kind = config.pop("model_type")
    classes: dict[str, tuple[Any, Any]] = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config_class, model_class = classes[kind]
    scaling = config.pop("rope_scaling", None)
    theta = config.pop("rope_theta")
    rope = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
    model = model_class(config_class(**config, rope_parameters=rope))
    missing, unexpected = model.load_state_dict(tiny_weights(config_json(shape)), strict=False)
    assert not unexpected
    assert all(name == "lm_head.weight" and config["tie_word_embeddings"] for name in missing)
    model.tie_weights()
    return model.eval()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_hidden_states_equal_transformers(shape: str) -> None:
    decoder = tiny_decoder(shape)
    model = oracle(shape)
    tokens = random_tokens(100, seed=1)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens]), output_hidden_states=True)
    sequences = Sequences(decoder)
    sequences.step({"a": tokens}, layers=(0, 1))
    torch.testing.assert_close(sequences.all_logits("a"), expected.logits[0], rtol=1e-4, atol=1e-4)
    assert sorted(sequences.hidden) == [0, 1]
    for layer, hidden in sequences.hidden.items():  # transformers counts the embedding as number 0
        torch.testing.assert_close(hidden, expected.hidden_states[layer + 1][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_chunked_steps_give_transformers_greedy_text(shape: str) -> None:
    """Prompts of several lengths, cut into chunks next to others' decode rows, then 12 greedy tokens each."""
    decoder = tiny_decoder(shape)
    model = oracle(shape)
    prompts = {"a": random_tokens(37, 2), "b": random_tokens(5, 3), "c": random_tokens(70, 4)}
    expected = {}
    for name, prompt in prompts.items():
        text = list(prompt)
        for _ in range(12):
            with torch.inference_mode():
                text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
        expected[name] = text
    sequences = Sequences(decoder, block_size=4, num_blocks=128)
    texts = {name: list(prompt) for name, prompt in prompts.items()}
    chunk = {"a": 9, "b": 5, "c": 31}
    while any(len(texts[name]) < len(expected[name]) for name in texts):
        rows = {}
        for name, text in texts.items():
            start = sequences.computed.get(name, 0)
            if len(text) < len(expected[name]):
                rows[name] = text[start : start + chunk[name]]
        sequences.step(rows)
        for name in rows:
            if sequences.computed[name] == len(texts[name]):
                texts[name].append(int(sequences.logits[name][sequences.computed[name] - 1].argmax()))
    assert texts == expected
