"""Writes a tiny random block drafter in each published format, as those formats' own tools lay it out.

Run by the tests into a temporary directory; in tests/, `python -m speculation.make_fixtures DIRECTORY` writes them to
look at. Every fixture of one layout holds the same weights, so formats can be compared draft by draft.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from models.tiny_models import tiny_config, tiny_weights
from safetensors.torch import save_file
from speculation.tiny_drafters import VOCAB_SIZE, draft_vocabulary, tiny_drafter_config, tiny_drafter_weights

from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout

NO_HEADS: dict[str, Any] = {
    "markov": MarkovKind.NONE,
    "markov_rank": 0,
    "has_confidence": False,
    "confidence_with_markov": False,
}
WHOLE: dict[str, Any] = {"draft_vocab_size": VOCAB_SIZE}

# What each fixture is, in our own words: what a reader must find.
MEANT: dict[str, DrafterConfig] = {
    "zlab": tiny_drafter_config(
        algorithm=Algorithm.DFLASH, layout=RowLayout.FILL_IN, block_size=8, **WHOLE, **NO_HEADS
    ),
    "speculators-dflash": tiny_drafter_config(
        algorithm=Algorithm.DFLASH,
        layout=RowLayout.FILL_IN,
        block_size=8,
        owns_embedding=True,
        owns_head=True,
        **NO_HEADS,
    ),
    "speculators-dspark": tiny_drafter_config(block_size=8, owns_embedding=True, owns_head=True),
    "speculators-dspark-old": tiny_drafter_config(
        block_size=8, layout=RowLayout.FILL_IN, owns_embedding=True, owns_head=True
    ),
    "deepspec-dspark": tiny_drafter_config(block_size=7, owns_embedding=True, owns_head=True, **WHOLE),
    "deepspec-dflash": tiny_drafter_config(
        algorithm=Algorithm.DFLASH, block_size=7, owns_embedding=True, owns_head=True, **WHOLE, **NO_HEADS
    ),
}


def network(config: DrafterConfig) -> dict[str, Any]:
    """The keys that all formats take over from transformers."""
    return {
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position,
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * config.num_layers,
    }


def heads(config: DrafterConfig) -> dict[str, Any]:
    return {
        "markov_rank": config.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": config.has_confidence,
        "confidence_head_with_markov": config.confidence_with_markov,
    }


def zlab_values(config: DrafterConfig) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        **network(config),
        "block_size": config.block_size,
        "num_target_layers": 3,
        "dflash_config": {"mask_token_id": config.mask_token_id, "target_layer_ids": list(config.target_layer_ids)},
    }


def speculators_values(config: DrafterConfig) -> dict[str, Any]:
    kind = config.algorithm.value
    from_anchor = config.layout is RowLayout.ANCHOR_FIRST
    return {
        "speculators_model_type": kind,
        "architectures": ["DFlashSpeculator" if kind == "dflash" else "DSparkSpeculator"],
        "transformer_layer_config": network(config),
        "draft_vocab_size": config.draft_vocab_size,
        "block_size": config.block_size,
        "target_hidden_size": config.target_hidden_size,
        "aux_hidden_state_layer_ids": [i + 1 for i in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        **({"sample_from_anchor": from_anchor} if from_anchor or kind == "dflash" else {}),
        **(heads(config) if kind == "dspark" else {}),
        "speculators_config": {
            "algorithm": kind,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.max_draft_tokens}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "tiny/llama", "architectures": ["LlamaForCausalLM"]},
        },
    }


def deepspec_values(config: DrafterConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3DSparkModel"],
        **network(config),
        "tie_word_embeddings": False,
        "num_target_layers": 3,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "num_anchors": 512,
        **heads(config),
    }


VALUES = {"zlab": zlab_values, "speculators": speculators_values, "deepspec": deepspec_values}


def fixture_tensors(config: DrafterConfig) -> dict[str, torch.Tensor]:
    """Own embedding and head are copies of the tiny Llama's, so drafts do not depend on who owns them."""
    tensors = tiny_drafter_weights(config)
    shared = tiny_weights(tiny_config("llama"))["model.embed_tokens.weight"]
    if config.owns_embedding:
        tensors["embed_tokens.weight"] = shared.clone()
    if config.owns_head:
        tensors["lm_head.weight"] = (
            shared[draft_vocabulary(config)] if config.has_reduced_vocabulary else shared.clone()
        )
    return tensors


def write_fixture(directory: Path, name: str, **changes: Any) -> Path:
    """Write one of MEANT; `changes` go into its config.json (None takes a key out)."""
    config = MEANT[name]
    values = VALUES[name.split("-")[0]](config) | changes
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({key: value for key, value in values.items() if value is not None}, indent=2)
    (directory / "config.json").write_text(text)
    tensors = fixture_tensors(config)
    if name.startswith("speculators") and config.has_reduced_vocabulary:
        tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill_(0, draft_vocabulary(config), True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


if __name__ == "__main__":
    for fixture in MEANT:
        print(write_fixture(Path(sys.argv[1]) / fixture, fixture))
