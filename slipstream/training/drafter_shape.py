"""From a recipe and a target to the configuration of the drafter to train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.attention.pattern import AttentionPattern
from slipstream.config import SettingError
from slipstream.models.config import DecoderConfig, ModelLoadError
from slipstream.models.tokenizer import Tokenizer
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, TargetIdentity
from slipstream.training.settings import DrafterShape


def drafter_config(
    shape: DrafterShape,
    target: DecoderConfig,
    identity: TargetIdentity,
    mask_token_id: int,
    training: Mapping[str, Any],
) -> DrafterConfig:
    """The configuration; embedding and head are shared with the target. Raises SettingError."""
    markov = MarkovKind.VANILLA if shape.markov_rank else MarkovKind.NONE
    window = shape.window or None
    if shape.from_layers and len(shape.from_layers) != shape.num_layers:
        raise SettingError(
            f"[drafter] from_layers {list(shape.from_layers)} must name num_layers = {shape.num_layers} layers"
        )
    for layer in shape.from_layers:
        if not 0 <= layer < target.num_layers:
            raise SettingError(
                f"[drafter] from_layers: {layer} is no layer of the target, which has 0 to {target.num_layers - 1}"
            )
    if shape.algorithm is Algorithm.DFLASH and (shape.markov_rank or shape.has_confidence):
        raise SettingError("[drafter] a dflash drafter has no heads: set markov_rank = 0 and has_confidence = false")
    try:
        return DrafterConfig(
            algorithm=shape.algorithm,
            layout=shape.layout,
            block_size=shape.block_size,
            target_layer_ids=shape.target_layers or spread_layers(target.num_layers),
            mask_token_id=mask_token_id,
            vocab_size=target.vocab_size,
            draft_vocab_size=min(shape.draft_vocab_size, target.vocab_size) or target.vocab_size,
            hidden_size=target.hidden_size,
            target_hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_heads=target.num_heads,
            num_kv_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            rms_norm_eps=target.rms_norm_eps,
            rope_theta=target.rope_theta,
            rope_scaling=target.rope_scaling,
            patterns=(AttentionPattern(is_causal=False, window=window),) * shape.num_layers,
            max_position=target.max_position,
            qk_norm=target.qk_norm,
            attention_bias=False,
            markov=markov,
            markov_rank=shape.markov_rank,
            has_confidence=shape.has_confidence,
            confidence_with_markov=shape.has_confidence and markov is not MarkovKind.NONE,
            target=identity,
            training=training,
        )
    except ModelLoadError as error:
        raise SettingError(f"[drafter] {error}") from None


def spread_layers(num_layers: int) -> tuple[int, ...]:
    """Up to four layers, evenly from the second to the last but one."""
    return tuple(sorted({round(1 + part * (num_layers - 3) / 3) for part in range(4) if num_layers > 2} or {0}))


def choose_mask_token(shape: DrafterShape, tokenizer: Tokenizer, counts: NDArray[np.int64], eos: set[int]) -> int:
    """A token that stands for one not yet known: the one named, or the last special token that the data never hold;
    without such, the last token of any kind that they never hold.

    Args:
        counts: how often each token stands in the data, prompts included.
    """
    if shape.mask_token:
        found = tokenizer.backend.token_to_id(shape.mask_token)
        if found is None:
            raise SettingError(f"[drafter] mask_token {shape.mask_token!r} is no token of this model")
        return int(found)
    unused = [token for token in np.flatnonzero(counts == 0).tolist() if token not in eos]
    if not unused:
        raise SettingError("[drafter] the data hold every token of the vocabulary; name one as mask_token")
    special = [token for token in unused if token in tokenizer.special_ids]
    return max(special or unused)
