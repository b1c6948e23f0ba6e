"""The format of z-lab's DFlash models: `DFlashDraftModel`, a flat Qwen3 configuration with a `dflash_config`.

Layer ids are 0-based layer outputs, as here. Rows are fill-in unless `sample_from_anchor` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.models.config import ModelLoadError
from slipstream.models.files import get_bool, get_int
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, RowLayout, TargetIdentity
from slipstream.speculation.formats.fields import (
    Shapes,
    get_ids,
    heads_of,
    layer_kinds,
    mask_token_id,
    network_shape,
    patterns,
    section,
)

ARCHITECTURE = "DFlashDraftModel"
_UNSUPPORTED = ("attention_sink_bias", "attention_value_scale")


def read_zlab(values: Mapping[str, Any], shapes: Shapes) -> DrafterConfig:
    """Translate a config.json. Raises ModelLoadError."""
    dflash = section(values, "dflash_config")
    for key in _UNSUPPORTED:
        if dflash.get(key):
            raise ModelLoadError(f"dflash_config.{key} is not supported")
    num_layers = get_int(values, "num_hidden_layers")
    depth = get_int(values, "num_target_layers")
    ids = get_ids(dflash, "target_layer_ids")
    network = network_shape(values, shapes)
    windowed, causal, window = _attention(values, dflash, num_layers)
    from_anchor = get_bool(dflash, "sample_from_anchor", False)
    return DrafterConfig(
        algorithm=Algorithm.DFLASH,
        layout=RowLayout.ANCHOR_FIRST if from_anchor else RowLayout.FILL_IN,
        block_size=get_int(dflash, "block_size", values.get("block_size")),
        target_layer_ids=tuple(default_layer_ids(depth, num_layers) if ids is None else ids),
        mask_token_id=mask_token_id(dflash, values),
        draft_vocab_size=network["vocab_size"],
        target_hidden_size=network["hidden_size"],
        patterns=patterns(windowed, window, causal),
        target=TargetIdentity(vocab_size=network["vocab_size"], hidden_size=network["hidden_size"], num_layers=depth),
        **network,
        **heads_of(values, shapes),
    )


def default_layer_ids(num_target_layers: int, num_drafter_layers: int) -> list[int]:
    """Evenly spaced from layer 1 to N - 3, halves rounded to even; the middle one for a single drafter layer."""
    if num_drafter_layers == 1:
        return [num_target_layers // 2]
    span = num_target_layers - 4
    return [round(1 + span * i / (num_drafter_layers - 1)) for i in range(num_drafter_layers)]


def _attention(
    values: Mapping[str, Any], dflash: Mapping[str, Any], num_layers: int
) -> tuple[list[bool], list[bool], int | None]:
    """Per layer windowed and causal, and the window."""
    window = get_int(dflash, "swa_window_size", get_int(values, "sliding_window", 0)) or None
    if get_bool(dflash, "use_swa", False):
        if window is None:
            raise ModelLoadError("dflash_config.use_swa needs swa_window_size or sliding_window, and there is neither")
        windowed, causal = [True] * num_layers, [False] * num_layers
    else:
        windowed = layer_kinds(values, num_layers)
        causal = list(windowed)
    for place in (values.get("is_causal"), dflash.get("causal")):
        if place is not None:
            if not isinstance(place, bool):
                raise ModelLoadError(f"causal must be true or false, got {place!r:.80}")
            causal = [place] * num_layers
            break
    return windowed, causal, window
