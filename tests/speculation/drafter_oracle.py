"""Target and block drafter in the plainest way: one request, dense, loops, float64, straight from the formulas.

Nothing of the package computes here; only its noise hash is used, which has an oracle of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from slipstream.sampling.noise import gumbel, noise_key


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, position: int, theta: float) -> Tensor:
    """One head [D], half-split pairs."""
    half = len(x) // 2
    angles = [position * theta ** (-2 * i / len(x)) for i in range(half)]
    c = torch.tensor([math.cos(angle) for angle in angles], dtype=x.dtype)
    s = torch.tensor([math.sin(angle) for angle in angles], dtype=x.dtype)
    return torch.cat((x[:half] * c - x[half:] * s, x[half:] * c + x[:half] * s))


def attended(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Query heads [H, D] over tokens' key and value heads [KV, D]."""
    num_heads, head_dim = query.shape
    group = num_heads // keys[0].shape[0]
    out = torch.empty_like(query)
    all_keys, all_values = torch.stack(list(keys)), torch.stack(list(values))
    for h in range(num_heads):
        weights = torch.softmax(all_keys[:, h // group] @ query[h] / math.sqrt(head_dim), 0)
        out[h] = weights @ all_values[:, h // group]
    return out


def swiglu(x: Tensor, weights: Mapping[str, Tensor], prefix: str) -> Tensor:
    gate = weights[prefix + "mlp.gate_proj.weight"] @ x
    return weights[prefix + "mlp.down_proj.weight"] @ (
        gate / (1 + torch.exp(-gate)) * (weights[prefix + "mlp.up_proj.weight"] @ x)
    )


class Weights(dict[str, Tensor]):
    """By name, in float64."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__(
            {name: value.double() if value.is_floating_point() else value for name, value in weights.items()}
        )


def heads(x: Tensor, weights: Weights, prefix: str, name: str, head_dim: int, position: int | None, cfg: Any) -> Tensor:
    """A projection's heads [H, D]; normed (where there are norm weights) and rotated where a position is given."""
    projected = weights[f"{prefix}self_attn.{name}_proj.weight"] @ x
    bias = weights.get(f"{prefix}self_attn.{name}_proj.bias")
    rows = (projected if bias is None else projected + bias).view(-1, head_dim)
    if position is None:
        return rows
    scale = weights.get(f"{prefix}self_attn.{name}_norm.weight")
    if scale is not None:
        rows = norm(rows, scale, cfg["eps"])
    return torch.stack([rotated(row, position, cfg["theta"]) for row in rows])


def target_states(config: Mapping[str, Any], weights: Weights, token_ids: Sequence[int]) -> list[list[Tensor]]:
    """[layer + 1][token]: the residual stream; entry 0 is the embedding's output, entry i + 1 layer i's output."""
    head_dim, cfg = config["head_dim"], {"eps": config["rms_norm_eps"], "theta": config["rope_theta"]}
    states = [[weights["model.embed_tokens.weight"][token] for token in token_ids]]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs = []
        for position, x in enumerate(states[-1]):
            h = norm(x, weights[prefix + "input_layernorm.weight"], cfg["eps"])
            keys.append(heads(h, weights, prefix, "k", head_dim, position, cfg))
            values.append(heads(h, weights, prefix, "v", head_dim, None, cfg))
            query = heads(h, weights, prefix, "q", head_dim, position, cfg)
            x = x + weights[prefix + "self_attn.o_proj.weight"] @ attended(query, keys, values).flatten()
            h = norm(x, weights[prefix + "post_attention_layernorm.weight"], cfg["eps"])
            outputs.append(x + swiglu(h, weights, prefix))
        states.append(outputs)
    return states


@dataclass
class OracleDrafter:
    """What a drafter is, told in other words than DrafterConfig's.

    Attributes:
        layers: per layer (rows see later rows of the block, context tokens before the anchor seen at most or None).
        tapped: 0-based target layers, -1 the embedding.
        fill_in: row k predicts its own position; else the next one.
        target_of: draft id -> target id.
        block_shift, bias_scale: faults: the block's rows stand too late; Markov biases are scaled.
    """

    weights: Weights
    target_weights: Weights
    target_config: Mapping[str, Any]
    layers: Sequence[tuple[bool, int | None]]
    tapped: Sequence[int]
    mask: int
    fill_in: bool
    head_dim: int
    target_of: Sequence[int]
    markov: str = "none"
    with_markov: bool = False
    block_shift: int = 0
    bias_scale: float = 1.0
    eps: float = 1e-6
    theta: float = 10000.0
    _states: dict[tuple[int, ...], list[list[Tensor]]] = field(default_factory=dict)

    def draft(
        self, token_ids: Sequence[int], num_drafts: int, *, temperature: float, seed: int, choice: int, num_prompt: int
    ) -> tuple[list[int], list[float] | None, list[Tensor]]:
        """Drafts after the anchor token_ids[-1], confidence logits, and each draft's corrected logits."""
        hidden = self.block_hidden(token_ids, num_drafts)[1 if self.fill_in else 0 :]
        head = self.weights.get("lm_head.weight")
        if head is None:
            full = self.target_weights.get("lm_head.weight", self.target_weights["model.embed_tokens.weight"])
            head = torch.stack([full[token] for token in self.target_of])
        previous, state = token_ids[-1], None
        drafts: list[int] = []
        scores: list[float] = []
        kept: list[Tensor] = []
        for k in range(num_drafts):
            logits = head @ hidden[k]
            embedded = None
            if self.markov != "none":
                embedded = self.weights["markov_head.markov_w1.weight"][previous]
                features, state = self.markov_features(embedded, hidden[k], state)
                logits = logits + self.bias_scale * (self.weights["markov_head.markov_w2.weight"] @ features)
            if "confidence_head.proj.weight" in self.weights:
                read = torch.cat((hidden[k], embedded)) if self.with_markov and embedded is not None else hidden[k]
                score = (
                    self.weights["confidence_head.proj.weight"][0] @ read + self.weights["confidence_head.proj.bias"][0]
                )
                scores.append(float(score))
            key = noise_key(seed, choice, len(token_ids) - num_prompt + k)
            best, best_value = -1, -math.inf
            for column, token in enumerate(self.target_of):
                value = float(logits[column])
                if temperature:
                    value = value / temperature + gumbel(key, token)
                if value > best_value:
                    best, best_value = token, value
            drafts.append(best)
            kept.append(logits)
            previous = best
        return drafts, scores or None, kept

    def markov_features(self, e: Tensor, h: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        w = self.weights
        if self.markov == "gated":
            gate = w["markov_head.gate_proj.weight"] @ torch.cat((h, e)) + w["markov_head.gate_proj.bias"]
            return e / (1 + torch.exp(-gate)), None
        if self.markov == "rnn":
            state = torch.zeros_like(e) if state is None else state
            z = w["markov_head.joint_proj.weight"] @ torch.cat((state, e, h)) + w["markov_head.joint_proj.bias"]
            r = len(e)
            g = 1 / (1 + torch.exp(-z[:r]))
            return torch.tanh(z[2 * r :]), g * state + (1 - g) * torch.tanh(z[r : 2 * r])
        return e, None

    def block_hidden(self, token_ids: Sequence[int], num_drafts: int) -> list[Tensor]:
        """Final hidden states of the block's rows."""
        w, anchor = self.weights, len(token_ids) - 1
        cfg = {"eps": self.eps, "theta": self.theta}
        key = tuple(token_ids[:anchor])
        if key not in self._states:
            self._states[key] = target_states(self.target_config, self.target_weights, key)
        states = self._states[key]
        context = []
        for position in range(anchor):
            tapped = torch.cat([states[layer + 1][position] for layer in self.tapped])
            context.append(norm(w["fc.weight"] @ tapped, w["hidden_norm.weight"], self.eps))
        embedding = w.get("embed_tokens.weight", self.target_weights["model.embed_tokens.weight"])
        num_rows = num_drafts + (1 if self.fill_in else 0)
        rows = [embedding[token_ids[-1]]] + [embedding[self.mask]] * (num_rows - 1)
        for layer, (sees_later, window) in enumerate(self.layers):
            prefix = f"layers.{layer}."
            first = 0 if window is None else max(0, anchor - window)
            keys = [heads(context[t], w, prefix, "k", self.head_dim, t, cfg) for t in range(first, anchor)]
            values = [heads(context[t], w, prefix, "v", self.head_dim, None, cfg) for t in range(first, anchor)]
            normed = [norm(x, w[prefix + "input_layernorm.weight"], self.eps) for x in rows]
            place = anchor + self.block_shift
            own_keys = [heads(h, w, prefix, "k", self.head_dim, place + i, cfg) for i, h in enumerate(normed)]
            own_values = [heads(h, w, prefix, "v", self.head_dim, None, cfg) for h in normed]
            outputs = []
            for i, x in enumerate(rows):
                seen = num_rows if sees_later else i + 1
                query = heads(normed[i], w, prefix, "q", self.head_dim, place + i, cfg)
                mixed = attended(query, keys + own_keys[:seen], values + own_values[:seen]).flatten()
                mixed = w[prefix + "self_attn.o_proj.weight"] @ mixed
                bias = w.get(prefix + "self_attn.o_proj.bias")
                x = x + (mixed if bias is None else mixed + bias)
                outputs.append(x + swiglu(norm(x, w[prefix + "post_attention_layernorm.weight"], self.eps), w, prefix))
            rows = outputs
        return [norm(x, w["norm.weight"], self.eps) for x in rows]
