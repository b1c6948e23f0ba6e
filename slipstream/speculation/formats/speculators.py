"""The format of the `speculators` library, dflash and dspark, and what is added to it here.

Layer ids there count layers passed (0 is the embedding, j the output of layer j - 1); ours are one less. Rows are
anchor-first only where `sample_from_anchor` is true: checkpoints from before the key are fill-in, of both kinds.

Additions, in one object under "slipstream" that other readers pass over: `calibrations`, `target` (TargetIdentity) and
`training`. Another difference: `lm_head` and `embed_tokens` may be missing; the target's are used, of the head the rows
that `d2t` names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slipstream.models.config import ModelLoadError
from slipstream.models.files import get_bool, get_float, get_int, get_str
from slipstream.speculation.drafter_config import (
    Algorithm,
    Calibration,
    DrafterConfig,
    MarkovKind,
    RowLayout,
    TargetIdentity,
)
from slipstream.speculation.formats.fields import (
    QWEN3_DEFAULTS,
    Shapes,
    get_ids,
    heads_of,
    layer_kinds,
    mask_token_id,
    network_shape,
    patterns,
    section,
)

TYPE_KEY = "speculators_model_type"
ADDITIONS = "slipstream"
_ARCHITECTURES = {Algorithm.DFLASH: "DFlashSpeculator", Algorithm.DSPARK: "DSparkSpeculator"}


def read_speculators(values: Mapping[str, Any], shapes: Shapes) -> DrafterConfig:
    """Translate a config.json. Raises ModelLoadError."""
    kind = get_str(values, TYPE_KEY)
    if kind not in {algorithm.value for algorithm in Algorithm}:
        raise ModelLoadError(f"{TYPE_KEY} {kind!r} is not supported; supported are 'dflash' and 'dspark'")
    algorithm = Algorithm(kind)
    layer = {**QWEN3_DEFAULTS, **section(values, "transformer_layer_config")}
    num_layers = get_int(layer, "num_hidden_layers")
    network = network_shape(layer, shapes)
    ids = get_ids(values, "aux_hidden_state_layer_ids")
    if ids is None:
        raise ModelLoadError("aux_hidden_state_layer_ids is missing: which target layers it reads is not known")
    windowed = layer_kinds(layer, num_layers)
    additions = section(values, ADDITIONS)
    return DrafterConfig(
        algorithm=algorithm,
        layout=RowLayout.ANCHOR_FIRST if get_bool(values, "sample_from_anchor", False) else RowLayout.FILL_IN,
        block_size=get_int(values, "block_size"),
        target_layer_ids=tuple(j - 1 for j in ids),
        mask_token_id=mask_token_id(values),
        draft_vocab_size=get_int(values, "draft_vocab_size", network["vocab_size"]),
        target_hidden_size=get_int(values, "target_hidden_size", network["hidden_size"]),
        patterns=patterns(windowed, get_int(layer, "sliding_window", 0) or None, _causal(values, algorithm, windowed)),
        calibrations=_calibrations(additions),
        target=read_target(values),
        training=section(additions, "training"),
        **network,
        **heads_of(values, shapes),
    )


def _causal(values: Mapping[str, Any], algorithm: Algorithm, windowed: list[bool]) -> list[bool]:
    """Windowed layers are causal unless the key says otherwise; without the key, those of dspark are."""
    non_causal = get_bool(values, "sliding_window_non_causal", algorithm is Algorithm.DFLASH)
    return [is_windowed and not non_causal for is_windowed in windowed]


def _calibrations(additions: Mapping[str, Any]) -> tuple[Calibration, ...]:
    entries = additions.get("calibrations", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ModelLoadError(f"{ADDITIONS}.calibrations must be a list of objects, got {entries!r:.100}")
    found = []
    for entry in entries:
        divisors, shifts = (_numbers(entry, name) for name in ("divisors", "shifts"))
        found.append(Calibration(temperature=get_float(entry, "temperature"), divisors=divisors, shifts=shifts))
    return tuple(found)


def _numbers(calibration: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """A list of numbers; an empty one where there is none."""
    values = calibration.get(name, [])
    if not isinstance(values, list):
        raise ModelLoadError(f"{ADDITIONS}.calibrations: {name} must be a list of numbers, got {values!r:.100}")
    return tuple(get_float({name: value}, name) for value in values)


def read_target(values: Mapping[str, Any]) -> TargetIdentity:
    """Whom a config.json says that the drafter was made for. Raises ModelLoadError."""
    layer = {**QWEN3_DEFAULTS, **section(values, "transformer_layer_config")}
    verifier = section(section(values, "speculators_config"), "verifier")
    known = section(section(values, ADDITIONS), "target")
    texts = {name: known.get(name) for name in ("name", "weights", "tokenizer")}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise ModelLoadError(f"{ADDITIONS}.target.{name} must be text, got {text!r:.100}")
    depth = known.get("num_layers")
    return TargetIdentity(
        name=texts["name"] or get_str(verifier, "name_or_path", "") or None,
        vocab_size=get_int(layer, "vocab_size"),
        hidden_size=get_int(values, "target_hidden_size", get_int(layer, "hidden_size")),
        num_layers=None if depth is None else get_int(known, "num_layers"),
        weights=texts["weights"],
        tokenizer=texts["tokenizer"],
    )


def speculators_config(config: DrafterConfig) -> dict[str, Any]:
    """A config.json that `read_speculators` turns back into `config`.

    Raises:
        ValueError: attention patterns that the format has no words for.
    """
    windows = {pattern.window for pattern in config.patterns if pattern.window is not None}
    windowed = [pattern.window is not None for pattern in config.patterns]
    causal = {pattern.is_causal for pattern in config.patterns if pattern.window is not None}
    if len(windows) > 1 or len(causal) > 1 or any(p.is_causal and p.window is None for p in config.patterns):
        raise ValueError(f"the format has one window, and no causal layer without one; got {config.patterns}")
    layer: dict[str, Any] = {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "attention_bias": config.attention_bias,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "layer_types": ["sliding_attention" if is_windowed else "full_attention" for is_windowed in windowed],
        "use_sliding_window": bool(windows),  # transformers drops the window without
        "sliding_window": next(iter(windows), None),
    }
    if config.rope_scaling.kind != "default":
        scaling = config.rope_scaling
        layer["rope_scaling"] = {
            "rope_type": scaling.kind,
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return {
        TYPE_KEY: config.algorithm.value,
        "architectures": [_ARCHITECTURES[config.algorithm]],
        "transformer_layer_config": layer,
        "draft_vocab_size": config.draft_vocab_size,
        "block_size": config.block_size,
        "target_hidden_size": config.target_hidden_size,
        "aux_hidden_state_layer_ids": [i + 1 for i in config.target_layer_ids],
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.layout is RowLayout.ANCHOR_FIRST,
        "sliding_window_non_causal": not any(causal),
        **(_heads(config) if config.algorithm is Algorithm.DSPARK or config.markov_rank else {}),
        "speculators_config": {
            "algorithm": config.algorithm.value,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.max_draft_tokens}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": config.target.name or "", "architectures": []},
        },
        ADDITIONS: {
            "calibrations": [dataclasses.asdict(calibration) for calibration in config.calibrations],
            "target": dataclasses.asdict(config.target),
            "training": dict(config.training),
        },
    }


def _heads(config: DrafterConfig) -> dict[str, Any]:
    kind = MarkovKind.VANILLA if config.markov is MarkovKind.NONE else config.markov
    return {
        "markov_rank": config.markov_rank,
        "markov_head_type": kind.value,
        "enable_confidence_head": config.has_confidence,
        "confidence_head_with_markov": config.confidence_with_markov,
    }
