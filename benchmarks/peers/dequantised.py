"""The model as a Hugging Face folder with bfloat16 weights, for peers that read no GGUF. Made once."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipstream.models.config import DecoderConfig, RopeScaling
from slipstream.models.loading import ModelSource

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def ensure_folder(source: ModelSource, parent: Path) -> Path:
    """The folder, below `parent`; written if it is not there. Its name holds the fingerprint of the weights."""
    folder = parent / f"{source.name}-bfloat16-{source.fingerprint()[:16]}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".dequantise-", dir=parent))
    try:
        write_folder(source, work)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def write_folder(source: ModelSource, folder: Path) -> None:
    """config.json, generation_config.json, weights, tokenizer with its chat template."""
    weights = {name: values.contiguous() for name, values in source.load_weights(torch.bfloat16, "cpu").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = source.config
    eos = sorted({*config.eos_token_ids, *source.tokenizer.eos_token_ids})
    _write(folder / "config.json", config_json(config, eos))
    _write(folder / "generation_config.json", {"bos_token_id": config.bos_token_id, "eos_token_id": eos})
    source.tokenizer.backend.save(str(folder / "tokenizer.json"))
    tokens: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if eos:
        tokens["eos_token"] = source.tokenizer.id_to_token(eos[0])
    if source.chat_template is not None:
        tokens["chat_template"] = source.chat_template.source
    _write(folder / "tokenizer_config.json", tokens)


def config_json(config: DecoderConfig, eos_token_ids: list[int]) -> dict[str, Any]:
    """Hugging Face's config.json of a decoder."""
    return {
        "architectures": [CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": _rope_scaling(config.rope_scaling),
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias and config.architecture != "qwen2",  # which has it in any case
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos_token_ids,
        "torch_dtype": "bfloat16",
    }


def _rope_scaling(scaling: RopeScaling) -> dict[str, Any] | None:
    if scaling.kind == "default":
        return None
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        values |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_position,
        }
    return values


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
