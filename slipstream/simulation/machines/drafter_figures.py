"""Drafters as architectures: what their own pass reads and computes; each figure knows its source."""

from __future__ import annotations

import dataclasses

from slipstream.simulation.machines.architectures import DEEPSEEK_V4_FLASH, DEEPSEEK_V41_FLASH, QWEN3_8B, Experts
from slipstream.simulation.machines.figures import Figure

_V41_CARD = "https://huggingface.co/yushengsu/deepseek-v4.1-flash-dspark-8000step"
_V4_FUSED = "fused checkpoint of 167 GB against 160 GB without, vLLM recipes, DeepSeek-V4-Flash.yaml at 8959cf6"
_NO_KV = Figure(0, "left out: sliding window of 128 tokens")
_BLOCK = "a pass over the whole block, then a Markov step per draft; counted by us as one layer's operations more"

DSPARK_V4_FLASH = dataclasses.replace(
    DEEPSEEK_V4_FLASH,
    name="DSpark for DeepSeek-V4-Flash",
    num_layers=Figure(4, f"3 layers (V4.1-Flash's card, {_V41_CARD}) and {_BLOCK}"),
    dense_bytes=Figure(1.6e9, "inferred: 0.5 GB of dense weights in 3 layers, and the target's head in bfloat16"),
    active_parameters=Figure(1.5e9, "inferred: 3 of 43 layers' active parameters, and the head's 0.53e9"),
    kv_bytes_per_token=_NO_KV,
    experts=Experts(
        Figure(6.5e9, f"{_V4_FUSED}, less 0.5 GB of dense weights"),
        Figure(128, f"as V4.1-Flash's, {_V41_CARD}"),
        Figure(6, "as the target's"),
    ),
)

DSPARK_V41_FLASH = dataclasses.replace(
    DEEPSEEK_V41_FLASH,
    name="DSpark for DeepSeek-V4.1-Flash",
    num_layers=Figure(4, f"3 layers, {_V41_CARD}, and {_BLOCK}"),
    dense_bytes=Figure(1.9e9, "inferred: 0.6 GB of dense weights in 3 layers, and the target's head in bfloat16"),
    active_parameters=Figure(1.9e9, "inferred: 3 of 40 layers' active parameters, and the head's 0.66e9"),
    kv_bytes_per_token=_NO_KV,
    experts=Experts(
        Figure(7.2e9, f"14.2e9 parameters, {_V41_CARD}, in FP4 with block scales, less dense weights"),
        Figure(128, _V41_CARD),
        Figure(6, "as the target's"),
    ),
)

_QWEN_CARD = "computed from the shapes of DSpark for Qwen3-8B: 5 layers, 1,126e6 parameters, Markov rank 256"

DSPARK_QWEN3_8B = dataclasses.replace(
    QWEN3_8B,
    name="DSpark for Qwen3-8B",
    num_layers=Figure(6, f"5 layers and {_BLOCK}"),
    dense_bytes=Figure(2 * (1126.4e6 + 622.3e6), f"{_QWEN_CARD}, and the head, bfloat16"),
    active_parameters=Figure(1126.4e6 + 622.3e6, f"{_QWEN_CARD}, and the head"),
    kv_bytes_per_token=Figure(20480, "5 layers x 8 heads x 128 x K and V, bfloat16"),
)

DRAFTERS = {
    "deepseek-v4-flash": DSPARK_V4_FLASH,
    "deepseek-v4.1-flash": DSPARK_V41_FLASH,
    "qwen3-8b": DSPARK_QWEN3_8B,
}
"""By the target's name in ARCHITECTURES; the embedded model drafts by n-grams, which cost nothing here."""
