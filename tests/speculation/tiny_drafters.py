"""Small random block drafters for the tiny models, and the oracle of each."""

from __future__ import annotations

from typing import Any

import torch
from models.tiny_models import tiny_config, tiny_weights
from speculation.drafter_oracle import OracleDrafter, Weights

from slipstream.attention.pattern import AttentionPattern
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout
from slipstream.speculation.drafter_model import DrafterModel

VOCAB_SIZE = 267
BIDIRECTIONAL = AttentionPattern(is_causal=False)


def tiny_drafter_config(**overrides: Any) -> DrafterConfig:
    """An anchor-first DSpark with everything shared, for `tiny_config` targets of three layers."""
    values: dict[str, Any] = {
        "algorithm": Algorithm.DSPARK,
        "layout": RowLayout.ANCHOR_FIRST,
        "block_size": 6,
        "target_layer_ids": (0, 1, 2),
        "mask_token_id": 4,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": 40,
        "hidden_size": 64,
        "target_hidden_size": 64,
        "intermediate_size": 80,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "patterns": (BIDIRECTIONAL, BIDIRECTIONAL),
        "max_position": 512,
        "markov": MarkovKind.VANILLA,
        "markov_rank": 8,
        "has_confidence": True,
        "confidence_with_markov": True,
    }
    return DrafterConfig(**(values | overrides))


def draft_vocabulary(config: DrafterConfig, seed: int = 5) -> torch.Tensor:
    """Ascending target ids of the draft vocabulary."""
    order = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))
    return order[: config.draft_vocab_size].sort().values


def tiny_drafter_weights(config: DrafterConfig, *, seed: int = 1) -> dict[str, torch.Tensor]:
    """Random weights by checkpoint name, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.tensor_shapes().items():
        if name == "d2t":
            weights[name] = draft_vocabulary(config) - torch.arange(config.draft_vocab_size)
        elif "q_norm" in name or "k_norm" in name:
            weights[name] = 2 + 0.4 * torch.randn(shape, generator=generator)
        elif "norm" in name:
            weights[name] = 1 + 0.2 * torch.randn(shape, generator=generator)
        elif name == "markov_head.markov_w1.weight":
            weights[name] = torch.randn(shape, generator=generator)
        elif "q_proj.weight" in name or "k_proj.weight" in name:  # attention that looks somewhere
            weights[name] = 2 * shape[-1] ** -0.5 * torch.randn(shape, generator=generator)
        else:
            weights[name] = shape[-1] ** -0.5 * torch.randn(shape, generator=generator)
    return weights


def tiny_drafter(config: DrafterConfig, kernels: Any = None, *, seed: int = 1) -> DrafterModel:
    model = DrafterModel(config, kernels=kernels)
    model.load_state_dict(tiny_drafter_weights(config, seed=seed))
    return model


def oracle_of(config: DrafterConfig, architecture: str = "llama", *, seed: int = 1, **changes: Any) -> OracleDrafter:
    """The oracle of `tiny_drafter(config)` in front of `write_tiny_hf_model(…, architecture)`."""
    target_config = tiny_config(architecture)
    weights = Weights(tiny_drafter_weights(config, seed=seed))
    ids = torch.arange(config.draft_vocab_size) + weights.pop("d2t", torch.zeros(config.draft_vocab_size)).long()
    values: dict[str, Any] = {
        "layers": [(not pattern.is_causal, pattern.window) for pattern in config.patterns],
        "tapped": config.target_layer_ids,
        "mask": config.mask_token_id,
        "fill_in": config.layout is RowLayout.FILL_IN,
        "head_dim": config.head_dim,
        "target_of": ids.tolist(),
        "markov": config.markov.value,
        "with_markov": config.confidence_with_markov,
        "theta": config.rope_theta,
    }
    return OracleDrafter(weights, Weights(tiny_weights(target_config)), target_config, **(values | changes))
