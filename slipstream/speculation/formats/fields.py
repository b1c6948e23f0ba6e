"""What the formats have in common: shapes of a Qwen3-like configuration, and what the tensors themselves tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.attention.pattern import AttentionPattern
from slipstream.models.config import ModelLoadError
from slipstream.models.files import get_bool, get_float, get_int, get_str
from slipstream.models.hf_config import rope_settings
from slipstream.speculation.drafter_config import MarkovKind

Shapes = Mapping[str, tuple[int, ...]]

# What a missing key of a transformers Qwen3 configuration means.
QWEN3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
}


def get_ids(values: Mapping[str, Any], key: str) -> list[int] | None:
    """A list of whole numbers; None where the key is absent or null."""
    ids = values.get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelLoadError(f"{key} must be a list of layer numbers, got {ids!r:.100}")
    return ids


def section(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested object; empty where it is absent."""
    part = values.get(key)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ModelLoadError(f"{key} must be an object, got {part!r:.100}")
    return part


def mask_token_id(*places: Mapping[str, Any]) -> int:
    """The mask id from the first place that has one."""
    for values in places:
        if values.get("mask_token_id") is not None:
            return get_int(values, "mask_token_id")
    raise ModelLoadError("mask_token_id is missing: without it there is no input for the positions to be drafted")


def network_shape(values: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """The DrafterConfig fields that any format spells like a transformers configuration."""
    hidden_size, num_heads = get_int(values, "hidden_size"), get_int(values, "num_attention_heads")
    if (activation := get_str(values, "hidden_act", "silu")) != "silu":
        raise ModelLoadError(f"hidden_act {activation!r} is not supported; only 'silu' is")
    max_position = get_int(values, "max_position_embeddings")
    theta, scaling = rope_settings(values, max_position)
    return {
        "vocab_size": get_int(values, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": get_int(values, "intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": get_int(values, "num_key_value_heads", num_heads),
        "head_dim": get_int(values, "head_dim", hidden_size // max(num_heads, 1)),
        "rms_norm_eps": get_float(values, "rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "max_position": max_position,
        "attention_bias": get_bool(values, "attention_bias", False),
        "qk_norm": "layers.0.self_attn.q_norm.weight" in shapes,
        "owns_embedding": "embed_tokens.weight" in shapes,
        "owns_head": "lm_head.weight" in shapes,
    }


def heads_of(values: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """Markov and confidence head, as the tensors show them; a configuration that says otherwise is refused."""
    w1, confidence = shapes.get("markov_head.markov_w1.weight"), shapes.get("confidence_head.proj.weight")
    kind, rank = MarkovKind.NONE, 0
    if w1 is not None:
        rank = w1[-1]
        kind = MarkovKind.VANILLA
        if "markov_head.gate_proj.weight" in shapes:
            kind = MarkovKind.GATED
        elif "markov_head.joint_proj.weight" in shapes:
            kind = MarkovKind.RNN
    said = get_int(values, "markov_rank", rank)
    if said != rank:
        raise ModelLoadError(f"markov_rank is {said}, but the Markov head's tensors have rank {rank}")
    said_kind = get_str(values, "markov_head_type", kind.value)
    if rank and said_kind != kind.value:
        raise ModelLoadError(f"markov_head_type is {said_kind!r}, but the tensors are those of a {kind.value!r} head")
    has_confidence = confidence is not None
    if get_bool(values, "enable_confidence_head", has_confidence) != has_confidence:
        raise ModelLoadError(
            f"enable_confidence_head is {not has_confidence}, but confidence_head.proj.weight is "
            + ("there" if has_confidence else "missing")
        )
    hidden = shapes["norm.weight"][0] if "norm.weight" in shapes else 0
    return {
        "markov": kind,
        "markov_rank": rank,
        "has_confidence": has_confidence,
        "confidence_with_markov": confidence is not None and rank > 0 and confidence[-1] == hidden + rank,
    }


def layer_kinds(values: Mapping[str, Any], num_layers: int) -> list[bool]:
    """Per layer, whether it has a sliding window."""
    kinds = values.get("layer_types")
    if kinds is None:
        return [False] * num_layers
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise ModelLoadError(f"layer_types must name the kind of each of the {num_layers} layers, got {kinds!r:.200}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelLoadError(
                f"layer_types holds {kind!r:.80}; supported are 'full_attention' and 'sliding_attention'"
            )
    return [kind == "sliding_attention" for kind in kinds]


def patterns(windowed: list[bool], window: int | None, causal: list[bool]) -> tuple[AttentionPattern, ...]:
    """One pattern per layer."""
    if any(windowed) and window is None:
        raise ModelLoadError("layer_types names sliding attention, but sliding_window is missing")
    return tuple(
        AttentionPattern(is_causal, window if is_windowed else None)
        for is_windowed, is_causal in zip(windowed, causal, strict=True)
    )
