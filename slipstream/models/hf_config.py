"""A decoder's configuration from a Hugging Face `config.json`; what is not supported is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.models.config import SUPPORTED_ROPE_KINDS, DecoderConfig, ModelLoadError, RopeScaling
from slipstream.models.files import get_bool, get_float, get_int, get_str

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


def hf_config(values: Mapping[str, Any], generation: Mapping[str, Any]) -> DecoderConfig:
    """Translate a config.json.

    Args:
        values: of config.json. generation: of generation_config.json, whose EOS ids win, as in transformers.

    Raises:
        ModelLoadError: a value is missing or impossible, or asks for what Slipstream does not do.
    """
    architecture = _architecture(values)
    _refuse_quantization(values)
    num_layers, max_position = get_int(values, "num_hidden_layers"), get_int(values, "max_position_embeddings")
    _refuse_sliding_window(values, architecture, num_layers, max_position)
    if (activation := get_str(values, "hidden_act", "silu")) != "silu":
        raise ModelLoadError(f"hidden_act {activation!r} is not supported; only 'silu' is")
    if get_bool(values, "mlp_bias", False):
        raise ModelLoadError("mlp_bias (biases in the feed-forward layers) is not supported")
    if architecture != "qwen2" and get_bool(values, "attention_bias", False):
        raise ModelLoadError(f"attention_bias (a bias on every projection) is not supported for {architecture}")
    hidden_size, num_heads = get_int(values, "hidden_size"), get_int(values, "num_attention_heads")
    if not 1 <= num_heads <= hidden_size:
        raise ModelLoadError(f"num_attention_heads must be between 1 and hidden_size, got {num_heads}")
    rope_theta, rope_scaling = rope_settings(values, max_position)
    eos = "eos_token_id"
    return DecoderConfig(
        architecture=architecture,
        vocab_size=get_int(values, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=get_int(values, "intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=get_int(values, "num_key_value_heads", num_heads),
        head_dim=get_int(values, "head_dim", 128 if architecture == "qwen3" else hidden_size // num_heads),
        rms_norm_eps=get_float(values, "rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position=max_position,
        tie_word_embeddings=get_bool(values, "tie_word_embeddings", False),
        qk_norm=architecture == "qwen3",
        attention_bias=architecture == "qwen2",
        eos_token_ids=_token_ids(generation, eos) or _token_ids(values, eos),
        bos_token_id=next(iter(_token_ids(values, "bos_token_id")), None),
    )


def _architecture(values: Mapping[str, Any]) -> str:
    names = values.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelLoadError(f"'architectures' is missing; supported are {', '.join(ARCHITECTURES)}")
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
    raise ModelLoadError(f"architecture {names[0]!r} is not supported; supported are {', '.join(ARCHITECTURES)}")


def _refuse_quantization(values: Mapping[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        quantization = values.get(key)
        if quantization is None:
            continue
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise ModelLoadError(
            f"{method or 'unknown'} quantization ({key}) is not supported; "
            "give the unquantized model, or a quantized one as a GGUF file"
        )


def _refuse_sliding_window(values: Mapping[str, Any], architecture: str, num_layers: int, max_position: int) -> None:
    """A window that no position can fall out of is harmless, and so is one that is switched off."""
    kinds = values.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds)):
        other = next((kind for kind in kinds if kind != "full_attention"), kinds) if isinstance(kinds, list) else kinds
        raise ModelLoadError(f"layer_types holds {other!r}; only 'full_attention' is supported")
    window = get_int(values, "sliding_window", 0)
    if not 0 < window < max_position:
        return
    in_use = get_bool(values, "use_sliding_window", architecture == "llama")
    if in_use and kinds is None and get_int(values, "max_window_layers", 0) < num_layers:
        raise ModelLoadError(f"sliding window attention is not supported (sliding_window {window})")


def rope_settings(values: Mapping[str, Any], max_position: int) -> tuple[float, RopeScaling]:
    """Base frequency and scaling of the rotary positions. Raises ModelLoadError for kinds that are not supported."""
    rope = _rope_values(values)
    theta = get_float(rope, "rope_theta", get_float(values, "rope_theta", 10000.0))
    return theta, _rope_scaling(rope, max_position)


def _rope_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings: `rope_parameters` since transformers 5, `rope_scaling` before."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = values.get(key)
        if rope is None:
            continue
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise ModelLoadError(f"{key} must be one object of settings for all layers, got {rope!r:.200}")
        return rope
    return {}


def _rope_scaling(rope: Mapping[str, Any], max_position: int) -> RopeScaling:
    kind = get_str(rope, "rope_type", get_str(rope, "type", "default"))
    if kind not in SUPPORTED_ROPE_KINDS:
        raise ModelLoadError(f"rope type {kind!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_KINDS)}")
    if get_float(rope, "partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError("partial rotary positions (partial_rotary_factor) are not supported")
    if "mrope_section" in rope:
        raise ModelLoadError("multimodal rotary positions (mrope_section) are not supported")
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind="linear", factor=get_float(rope, "factor"))
    return RopeScaling(
        kind="llama3",
        factor=get_float(rope, "factor"),
        low_freq_factor=get_float(rope, "low_freq_factor"),
        high_freq_factor=get_float(rope, "high_freq_factor"),
        original_max_position=get_int(rope, "original_max_position_embeddings", max_position),
    )


def _token_ids(values: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """An id, a list of ids, or nothing."""
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(get_int({key: item}, key) for item in ids)
