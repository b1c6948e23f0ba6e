"""Small random GGUF files, made from the same weights as the tiny Hugging Face models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tiny_models import (
    BOS_TOKEN_ID,
    CHAT_TEMPLATE,
    EOS_TOKEN_ID,
    MERGES,
    SPECIAL_TOKENS,
    tiny_config,
    tiny_tokenizer,
    tiny_weights,
)

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order that llama.cpp's converter writes for rope on neighbouring pairs."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def write_tiny_gguf(
    path: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    pre_tokenizer: str = "smollm",
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    **overrides: Any,
) -> dict[str, torch.Tensor]:
    """Write a GGUF file with gguf's own writer; returns the weights by Hugging Face name, before quantization.

    Args:
        metadata: keys to write instead of (or beside) the usual ones; None leaves one out.
        tensors: tensors, by GGUF name, to write instead of (or beside) the usual ones; None leaves one out.
        overrides: of `tiny_config`.
    """
    config = tiny_config(architecture, **overrides)
    weights = tiny_weights(config, seed=seed)
    tokenizer = tiny_tokenizer()
    pieces = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    values: dict[str, Any] = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.key_length": config["head_dim"],
        f"{architecture}.attention.value_length": config["head_dim"],
        f"{architecture}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{architecture}.rope.freq_base": float(config["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre_tokenizer,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if piece in SPECIAL_TOKENS else 1 for piece in pieces],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in MERGES],
        "tokenizer.ggml.bos_token_id": BOS_TOKEN_ID,
        "tokenizer.ggml.eos_token_id": EOS_TOKEN_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    } | (metadata or {})
    writer = gguf.GGUFWriter(path, values.pop("general.architecture", architecture))
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    arrays: dict[str, np.ndarray | None] = {}
    for name, tensor in weights.items():
        array = tensor.numpy()
        if architecture == "llama" and "q_proj" in name:
            array = _interleaved(array, config["num_attention_heads"])
        elif architecture == "llama" and "k_proj" in name:
            array = _interleaved(array, config["num_key_value_heads"])
        arrays[_gguf_name(name)] = array
    for name, array in (arrays | (tensors or {})).items():
        if array is None:
            continue
        kind = quantization if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
