"""A drafter's first weights: random, or taken from the target's own layers.

A layer of a drafter computes what a layer of the target does, with keys and values of the context made from H instead
of from the layer's own input. If H is the normed output of the target layer below, context keys and values are the
target's own. So `fc` starts by passing on the tapped layer that feeds the first layer taken, and `hidden_norm` has that
layer's norm weights. The further layers see the same H but were made for another norm: the ratio of the norms' weights
goes into their projections, and all layers get the first one's norm, which changes nothing for their own rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.heads import MarkovHead

_COPIED = (
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "self_attn.q_proj.bias",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.bias",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)

_LEAST_NORM_WEIGHT = 1e-3


@torch.no_grad()
def fill_random(model: DrafterModel, seed: int) -> None:
    """Normal weights of standard deviation 1 / sqrt(width), norms of 1; Markov and confidence heads start at 0 effect
    (only their inner half is random)."""
    generator = torch.Generator().manual_seed(seed)
    for name, values in sorted(model.named_parameters()):
        if "norm" in name:
            values.fill_(1.0)
        elif name.endswith(("markov_w2.weight", "bias")) or name.startswith("confidence_head"):
            values.zero_()
        else:
            drawn = torch.randn(values.shape, generator=generator) * values.shape[-1] ** -0.5
            values.copy_(drawn)


@torch.no_grad()
def copy_target_layers(
    model: DrafterModel, target: Mapping[str, Tensor], layers: Sequence[int], final_norm: str = "model.norm.weight"
) -> None:
    """Start the drafter's layers from the target's `layers`; shapes must be equal.

    Args:
        target: the target's weights by Hugging Face name.
    """
    config = model.config
    width = config.hidden_size
    states = model.state_dict()
    for index, layer in enumerate(layers):
        for name in _COPIED:
            source = target.get(f"model.layers.{layer}.{name}")
            place = states.get(f"layers.{index}.{name}")
            if source is not None and place is not None:
                place.copy_(source)
    first = target[f"model.layers.{layers[0]}.input_layernorm.weight"].float()
    first = torch.where(first.abs() < _LEAST_NORM_WEIGHT, _LEAST_NORM_WEIGHT, first)
    for index in range(len(layers)):
        norm = states[f"layers.{index}.input_layernorm.weight"]
        for projection in "qkv":
            states[f"layers.{index}.self_attn.{projection}_proj.weight"].mul_(norm / first)
        norm.copy_(first)
    fed = nearest_tap(config, layers[0] - 1)
    model.fc.weight[:, fed * width : (fed + 1) * width].copy_(torch.eye(width))
    others = [tap for tap in range(len(config.target_layer_ids)) if tap != fed]
    for tap in others:
        model.fc.weight[:, tap * width : (tap + 1) * width].zero_()
    model.hidden_norm.weight.copy_(first)
    model.norm.weight.copy_(target[final_norm])


@torch.no_grad()
def start_markov_head(head: MarkovHead, w1: Tensor, w2: Tensor) -> None:
    """Start a Markov head from factors (training/bigrams.py): what a pair of tokens says needs no steps to learn."""
    head.markov_w1.weight.copy_(w1)
    head.markov_w2.weight.copy_(w2)


def nearest_tap(config: DrafterConfig, layer: int) -> int:
    """Which of the tapped layers is nearest to `layer`; the later one of two."""
    ids = config.target_layer_ids
    return min(reversed(range(len(ids))), key=lambda tap: abs(ids[tap] - layer))
