"""Run a decoder over token sequences in any split into steps, without scheduler or executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from models.tiny_models import tiny_config, tiny_weights
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.invariant import InvariantAttention
from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.attention.paged import PagedAttention
from slipstream.kernels.fast import FastKernels
from slipstream.kernels.invariant import InvariantKernels
from slipstream.models.config import DecoderConfig, RopeScaling
from slipstream.models.decoder import Decoder

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama_untied": {"tie_word_embeddings": False, "hidden_size": 96, "num_attention_heads": 6},
    "llama_linear": {
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "llama_llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {},
    "qwen3": {"head_dim": 32},
}


def config_json(shape: str) -> dict[str, Any]:
    """config.json of a named shape."""
    return tiny_config(shape.split("_")[0], **SHAPES[shape])


def decoder_config(config: dict[str, Any]) -> DecoderConfig:
    """The DecoderConfig of a config.json, written out here so that these tests do not lean on the loader."""
    scaling = config.get("rope_scaling")
    return DecoderConfig(
        architecture=config["model_type"],
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        rope_scaling=RopeScaling()
        if scaling is None
        else RopeScaling(
            kind=scaling["rope_type"],
            factor=scaling["factor"],
            low_freq_factor=scaling.get("low_freq_factor", 1.0),
            high_freq_factor=scaling.get("high_freq_factor", 4.0),
            original_max_position=scaling.get("original_max_position_embeddings", 8192),
        ),
        max_position=config["max_position_embeddings"],
        tie_word_embeddings=config["tie_word_embeddings"],
        qk_norm=config["model_type"] == "qwen3",
        attention_bias=config["model_type"] == "qwen2",
    )


def tiny_decoder(shape: str, *, invariant: bool = False, dtype: torch.dtype = torch.float32) -> Decoder:
    """A random decoder; the same weights each time."""
    config = config_json(shape)
    weights = {name: tensor.to(dtype) for name, tensor in tiny_weights(config).items()}
    kernels = InvariantKernels() if invariant else FastKernels()
    attention = InvariantAttention() if invariant else PagedAttention()
    return Decoder(decoder_config(config), weights, kernels=kernels, attention=attention)


@dataclass
class Sequences:
    """Sequences that grow in one cache; blocks are handed out in a scattered order.

    Attributes:
        computed: tokens of each sequence that are in the cache.
        logits: per sequence and position, the logits row of the newest run.
    """

    decoder: Decoder
    block_size: int = 16
    num_blocks: int = 64
    computed: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[int]] = field(default_factory=dict)
    logits: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    hidden: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache: PagedKVCache = self.decoder.make_cache(self.num_blocks, self.block_size)
        self._free = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(7)).tolist()

    def step(self, rows: dict[str, Sequence[int]], *, keep: dict[str, int] | None = None, layers: Any = ()) -> None:
        """One pass over the next tokens of some sequences; `keep` says how many of them stay (all when absent)."""
        requests, token_ids = [], []
        for name, tokens in rows.items():
            first = self.computed.setdefault(name, 0)
            table = self.tables.setdefault(name, [])
            while len(table) * self.block_size < first + len(tokens):
                table.append(self._free.pop())
            requests.append(AttentionRequest(len(token_ids), len(tokens), first, list(table)))
            token_ids.extend(tokens)
        metadata = build_metadata(requests, self.block_size, self.cache.scratch_block, self.decoder.device)
        output = self.decoder.forward(torch.tensor(token_ids), metadata, self.cache, layers)
        logits = self.decoder.compute_logits(output.hidden)
        self.hidden = output.layer_hidden
        for request, (name, tokens) in zip(requests, rows.items(), strict=True):
            for i in range(len(tokens)):
                row = logits[request.row_start + i]
                self.logits.setdefault(name, {})[request.first_position + i] = row
            self.computed[name] += len(tokens) if keep is None or name not in keep else keep[name]

    def all_logits(self, name: str) -> Tensor:
        """[tokens, vocabulary], in order of position."""
        return torch.stack([self.logits[name][p] for p in range(self.computed[name])])

    def key_values(self, name: str) -> Tensor:
        """[layers, tokens, 2, num_kv_heads, head_dim]."""
        table = torch.tensor(self.tables[name])
        layers = [self.cache.gather(i, table)[: self.computed[name]] for i in range(len(self.cache.layers))]
        return torch.stack(layers)


def random_tokens(count: int, seed: int, vocab_size: int = 256) -> list[int]:
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
