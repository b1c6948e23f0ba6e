"""DeepSpec's format: the target's own flat configuration with the drafter's fields written over it.

`Qwen3DSparkModel` also names its DFlash baseline, which is a DSpark without heads: anchor-first too. Layer ids are
0-based layer outputs, -1 the embedding, as here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.models.files import get_bool, get_int
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout, TargetIdentity
from slipstream.speculation.formats.fields import (
    Shapes,
    get_ids,
    heads_of,
    layer_kinds,
    mask_token_id,
    network_shape,
    patterns,
)
from slipstream.speculation.formats.zlab import default_layer_ids

ARCHITECTURE = "Qwen3DSparkModel"


def read_deepspec(values: Mapping[str, Any], shapes: Shapes) -> DrafterConfig:
    """Translate a config.json. Raises ModelLoadError."""
    num_layers, depth = get_int(values, "num_hidden_layers"), get_int(values, "num_target_layers")
    ids = get_ids(values, "target_layer_ids")
    network = network_shape(values, shapes)
    heads = heads_of(values, shapes)
    windowed = layer_kinds(values, num_layers)
    is_baseline = heads["markov"] is MarkovKind.NONE and not heads["has_confidence"]
    return DrafterConfig(
        algorithm=Algorithm.DFLASH if is_baseline else Algorithm.DSPARK,
        layout=RowLayout.ANCHOR_FIRST if get_bool(values, "sample_from_anchor", True) else RowLayout.FILL_IN,
        block_size=get_int(values, "block_size"),
        target_layer_ids=tuple(default_layer_ids(depth, num_layers) if ids is None else ids),
        mask_token_id=mask_token_id(values),
        draft_vocab_size=network["vocab_size"],
        target_hidden_size=network["hidden_size"],
        patterns=patterns(windowed, get_int(values, "sliding_window", 0) or None, windowed),
        target=TargetIdentity(vocab_size=network["vocab_size"], hidden_size=network["hidden_size"], num_layers=depth),
        **network,
        **heads,
    )
