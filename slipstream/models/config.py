"""What a decoder is: the numbers of its shape, and the error for every model that cannot be loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3")

# Far above any model there is; a file that claims more is broken, and is refused before anything is allocated.
_LARGEST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "num_layers": 1024,
    "num_heads": 1024,
    "num_kv_heads": 1024,
    "head_dim": 1024,
    "max_position": 1 << 27,
}


class ModelLoadError(ValueError):
    """A model that cannot be loaded: refused by name, or its files are broken. The message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are changed to reach further than the model was first trained for.

    Attributes:
        kind: `default` (unchanged), `linear` (all frequencies divided by `factor`), or `llama3` (wavelengths longer
            than original_max_position / low_freq_factor divided by `factor`, those shorter than
            original_max_position / high_freq_factor kept, a linear blend between).
        factor: >= 1.
        low_freq_factor, high_freq_factor, original_max_position: of `llama3`; original_max_position is in tokens.
    """

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in SUPPORTED_ROPE_KINDS:
            raise ModelLoadError(
                f"rope scaling {self.kind!r} is not supported; supported are {', '.join(SUPPORTED_ROPE_KINDS)}"
            )
        if not 1.0 <= self.factor < math.inf:
            raise ModelLoadError(f"rope scaling factor must be at least 1, got {self.factor}")
        if self.kind == "llama3":
            if not 0.0 < self.low_freq_factor < self.high_freq_factor < math.inf:
                raise ModelLoadError(
                    "rope scaling llama3 needs 0 < low_freq_factor < high_freq_factor, "
                    f"got {self.low_freq_factor} and {self.high_freq_factor}"
                )
            if self.original_max_position < 1:
                raise ModelLoadError(
                    f"rope scaling: original_max_position must be at least 1, got {self.original_max_position}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shape of a Llama-like decoder; names follow Hugging Face's config.json.

    A shape that cannot exist raises ModelLoadError.

    Attributes:
        architecture: one of SUPPORTED_ARCHITECTURES.
        head_dim: width of one head; num_heads * head_dim need not be hidden_size.
        max_position: tokens the model was made for.
        tie_word_embeddings: the output projection is the embedding, and no `lm_head.weight` exists.
        qk_norm: RMS norm of each query and key head before the rotation (Qwen3).
        attention_bias: q, k and v projections have a bias (Qwen2).
        eos_token_ids: tokens that end a text. bos_token_id: the one that begins it, where there is one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    max_position: int
    tie_word_embeddings: bool
    qk_norm: bool = False
    attention_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.architecture not in SUPPORTED_ARCHITECTURES:
            raise ModelLoadError(
                f"architecture {self.architecture!r} is not supported; supported are "
                + ", ".join(SUPPORTED_ARCHITECTURES)
            )
        for name, largest in _LARGEST.items():
            value = getattr(self, name)
            if not 1 <= value <= largest:
                raise ModelLoadError(f"{name} must be between 1 and {largest}, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ModelLoadError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        for name in ("rms_norm_eps", "rope_theta"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ModelLoadError(f"{name} must be a number greater than 0, got {getattr(self, name)}")
        for token_id in (*self.eos_token_ids, *(() if self.bos_token_id is None else (self.bos_token_id,))):
            if not 0 <= token_id < self.vocab_size:
                raise ModelLoadError(f"BOS or EOS token id {token_id} lies outside the vocabulary of {self.vocab_size}")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, as Hugging Face names and lays them out ([out, in] for projections)."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query_width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            attention = prefix + "self_attn."
            shapes[prefix + "input_layernorm.weight"] = (hidden,)
            for name, width in (("q_proj", query_width), ("k_proj", kv_width), ("v_proj", kv_width)):
                shapes[f"{attention}{name}.weight"] = (width, hidden)
                if self.attention_bias:
                    shapes[f"{attention}{name}.bias"] = (width,)
            shapes[attention + "o_proj.weight"] = (hidden, query_width)
            if self.qk_norm:
                shapes[attention + "q_norm.weight"] = (self.head_dim,)
                shapes[attention + "k_norm.weight"] = (self.head_dim,)
            shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
            shapes[prefix + "mlp.gate_proj.weight"] = (inner, hidden)
            shapes[prefix + "mlp.up_proj.weight"] = (inner, hidden)
            shapes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes
