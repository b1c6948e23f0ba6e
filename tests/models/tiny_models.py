"""Small random models in Hugging Face's layout, written where a test wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_TOKEN_ID, EOS_TOKEN_ID = 1, 2
MERGES = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("a", "n"), ("an", "d"), ("Ġ", "and"), ("in", "g"))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE: three special tokens, 256 bytes, a few merges."""
    pieces = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=list(MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL_TOKENS])
    return tokenizer


def tiny_config(architecture: str, **overrides: Any) -> dict[str, Any]:
    """A config.json; a key overridden with None is left out."""
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": tiny_tokenizer().get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": architecture != "qwen2",
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    } | overrides
    return {key: value for key, value in config.items() if value is not None}


def tiny_weights(config: dict[str, Any], *, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 weights by Hugging Face name, of a scale that keeps logits apart."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, mean: float = 0.0, std: float | None = None) -> torch.Tensor:
        std = shape[-1] ** -0.5 if std is None else std
        return mean + std * torch.randn(*shape, generator=generator)

    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    weights = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        for name, count in (("q", heads), ("k", config["num_key_value_heads"]), ("v", config["num_key_value_heads"])):
            weights[f"{attention}{name}_proj.weight"] = normal(count * head_dim, hidden)
            if config["model_type"] == "qwen2":
                weights[f"{attention}{name}_proj.bias"] = normal(count * head_dim, std=0.3)
        weights[attention + "o_proj.weight"] = normal(hidden, heads * head_dim)
        if config["model_type"] == "qwen3":
            weights[attention + "q_norm.weight"] = normal(head_dim, mean=1.0, std=0.2)
            weights[attention + "k_norm.weight"] = normal(head_dim, mean=1.0, std=0.2)
        weights[prefix + "input_layernorm.weight"] = normal(hidden, mean=1.0, std=0.1)
        weights[prefix + "post_attention_layernorm.weight"] = normal(hidden, mean=1.0, std=0.1)
        weights[prefix + "mlp.gate_proj.weight"] = normal(inner, hidden)
        weights[prefix + "mlp.up_proj.weight"] = normal(inner, hidden)
        weights[prefix + "mlp.down_proj.weight"] = normal(hidden, inner)
    weights["model.norm.weight"] = normal(hidden, mean=1.0, std=0.1)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden)
    return weights


def write_tiny_hf_model(directory: Path, architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json; returns the directory.

    `overrides` change config.json (None leaves a key out) and with it the shapes of the random weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(architecture, **overrides)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tiny_weights(config, seed=seed), directory / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_TOKEN_ID],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return directory
