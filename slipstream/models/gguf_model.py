"""A decoder's configuration and weights from a GGUF file, in Hugging Face's names and layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from slipstream.models.config import SUPPORTED_ARCHITECTURES, DecoderConfig, ModelLoadError, RopeScaling
from slipstream.models.files import get_float, get_int, get_str
from slipstream.models.gguf_file import GGUFFile
from slipstream.models.tokenizer import Tokenizer
from slipstream.models.weights import check_shapes

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"  # no weight: the divisor of each rotary frequency
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 8192}


def gguf_architecture(file: GGUFFile) -> str:
    """The file's architecture, or a refusal that names what it holds instead."""
    metadata = file.metadata
    kind = get_str(metadata, "general.type", "model")
    if kind != "model":
        raise ModelLoadError(f"holds a GGUF {kind!r} (a LoRA adapter or the like), not a model; give the model itself")
    if get_int(metadata, "split.count", 1) > 1:
        raise ModelLoadError("one part of a split GGUF is not supported; merge the parts into one file first")
    architecture = get_str(metadata, "general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ModelLoadError(
            f"GGUF architecture {architecture!r} is not supported; supported are {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    if get_int(metadata, f"{architecture}.expert_count", 0) > 0:
        raise ModelLoadError(f"mixture of experts ({architecture}.expert_count) is not supported")
    return architecture


def gguf_config(file: GGUFFile, architecture: str, tokenizer: Tokenizer) -> DecoderConfig:
    """Read the shape from metadata and check every tensor against it.

    Raises:
        ModelLoadError: a value is missing, impossible or not supported, or a tensor is missing or of another shape.
    """
    values = {
        key.removeprefix(f"{architecture}."): value
        for key, value in file.metadata.items()
        if key.startswith(f"{architecture}.")
    }
    hidden_size, num_heads = get_int(values, "embedding_length"), get_int(values, "attention.head_count")
    if not 1 <= num_heads <= hidden_size:
        raise ModelLoadError(f"attention.head_count must be between 1 and embedding_length, got {num_heads}")
    head_dim = get_int(values, "attention.key_length", hidden_size // num_heads)
    if get_int(values, "attention.value_length", head_dim) != head_dim:
        raise ModelLoadError("values of another width than keys (attention.value_length) are not supported")
    if get_int(values, "rope.dimension_count", head_dim) != head_dim:
        raise ModelLoadError(
            f"partial rotary positions are not supported: rope.dimension_count is {values['rope.dimension_count']}, "
            f"a head {head_dim} wide"
        )
    max_position = get_int(values, "context_length")
    if 0 < get_int(values, "attention.sliding_window", 0) < max_position:
        raise ModelLoadError(f"sliding window attention is not supported ({values['attention.sliding_window']} tokens)")
    rope_theta = get_float(values, "rope.freq_base", 10000.0)
    config = DecoderConfig(
        architecture=architecture,
        vocab_size=tokenizer.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=get_int(values, "feed_forward_length"),
        num_layers=get_int(values, "block_count"),
        num_heads=num_heads,
        num_kv_heads=get_int(values, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=get_float(values, "attention.layer_norm_rms_epsilon"),
        rope_theta=rope_theta,
        rope_scaling=_rope_scaling(file, values, rope_theta, head_dim),
        max_position=max_position,
        tie_word_embeddings="output.weight" not in file.tensors,
        qk_norm=architecture == "qwen3",
        attention_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        eos_token_ids=tokenizer.eos_token_ids,
        bos_token_id=tokenizer.bos_token_id,
    )
    check_shapes(
        config, {hf_name(name): tensor.shape for name, tensor in file.tensors.items() if name != _ROPE_FACTORS}
    )
    return config


def gguf_vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError("tensor 'token_embd.weight' is missing or no matrix")
    return embedding.shape[0]


def read_gguf_weights(file: GGUFFile, config: DecoderConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and float32 values of each weight, one at a time."""
    for name in weight_names(file):
        values = file.read(name)
        heads = paired_heads(name, config)
        if heads is not None:
            values = half_split_rows(values, heads)
        yield hf_name(name), torch.from_numpy(values)
    file.forget_pages()


def weight_names(file: GGUFFile) -> list[str]:
    """Of the tensors that are weights."""
    return [name for name in file.tensors if name != _ROPE_FACTORS]


def paired_heads(name: str, config: DecoderConfig) -> int | None:
    """How many heads a tensor has whose rows `half_split_rows` must put in order; None for all other tensors."""
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    return heads.get(name.split(".")[-2]) if config.architecture == "llama" else None


def hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; unknown ones keep theirs."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


def half_split_rows(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Put the rows of a q or k projection back into Hugging Face's order.

    Llama files keep the two numbers that are rotated together side by side; Hugging Face keeps all first ones of a
    head, then all second ones.
    """
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _rope_scaling(file: GGUFFile, values: Mapping[str, Any], theta: float, head_dim: int) -> RopeScaling:
    kind = get_str(values, "rope.scaling.type", "linear" if "rope.scale_linear" in values else "none")
    if kind not in ("none", "linear"):
        raise ModelLoadError(f"rope scaling {kind!r} is not supported; supported are none, linear and llama3's factors")
    if get_float(values, "rope.scaling.attn_factor", 1.0) != 1.0:
        raise ModelLoadError("rope.scaling.attn_factor other than 1 is not supported")
    if _ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise ModelLoadError(f"rope scaling {kind!r} together with {_ROPE_FACTORS} is not supported")
        original = get_int(values, "rope.scaling.original_context_length", _LLAMA3["original_max_position"])
        return _llama3_scaling(file.read(_ROPE_FACTORS), theta, head_dim, original)
    if kind == "none":
        return RopeScaling()
    factor = get_float(values, "rope.scaling.factor", get_float(values, "rope.scale_linear", 0.0))
    return RopeScaling(kind="linear", factor=factor)


def _llama3_scaling(
    divisors: np.ndarray[Any, Any], theta: float, head_dim: int, original_max_position: int
) -> RopeScaling:
    """Recognise Llama 3's rule in the divisors it gave, or refuse them: they could come from another rule."""
    if divisors.shape != (head_dim // 2,) or not np.isfinite(divisors).all():
        raise ModelLoadError(f"{_ROPE_FACTORS} must hold {head_dim // 2} finite numbers, has shape {divisors.shape}")
    factor = float(divisors.max())
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    scaling = RopeScaling(
        kind="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=original_max_position,
    )
    turns = original_max_position * theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    if not np.allclose(divisors, 1.0 / ((1.0 - blend) / factor + blend), rtol=1e-3):
        raise ModelLoadError(
            f"{_ROPE_FACTORS} does not hold Llama 3's rope scaling (longrope and others are not supported)"
        )
    return scaling
