"""Hugging Face directories: three architectures load; all else, broken files included, is refused by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import ARCHITECTURES, BOS_TOKEN_ID, CHAT_TEMPLATE, EOS_TOKEN_ID, write_tiny_hf_model

from slipstream.config import EMBEDDED_MODEL
from slipstream.models.config import ModelLoadError
from slipstream.models.loading import open_model
from slipstream.request import RequestError


def refused(directory: Path, match: str | None = None) -> None:
    with pytest.raises(ModelLoadError, match=match) as caught:
        open_model(str(directory))
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_come_back(tmp_path: Path, architecture: str, sharded: bool) -> None:
    directory = write_tiny_hf_model(tmp_path / "tiny", architecture)
    weights = load_file(directory / "model.safetensors")
    if sharded:
        (directory / "model.safetensors").unlink()
        names = sorted(weights)
        shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, part in shards.items():
            save_file({name: weights[name] for name in part}, directory / file)
        weight_map = {name: file for file, part in shards.items() for name in part}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    source = open_model(str(directory))
    loaded = source.load_weights(torch.float32, "cpu")
    assert loaded.keys() == weights.keys() == source.config.tensor_shapes().keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert source.load_weights(torch.bfloat16, "cpu")["model.norm.weight"].dtype == torch.bfloat16
    config = source.config
    assert (source.name, config.architecture, config.eos_token_ids) == ("tiny", architecture, (EOS_TOKEN_ID,))
    assert (config.qk_norm, config.attention_bias) == (architecture == "qwen3", architecture == "qwen2")
    assert source.tokenizer.bos_token_id == BOS_TOKEN_ID
    assert source.chat_template is not None


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_directory_that_transformers_saved(tmp_path: Path, architecture: str) -> None:
    transformers = pytest.importorskip("transformers")
    directory = write_tiny_hf_model(
        tmp_path / "tiny", architecture, rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=5000.0
    )
    source = open_model(str(directory))
    for part in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        part.from_pretrained(directory).save_pretrained(tmp_path / "saved")
    saved = open_model(str(tmp_path / "saved"))
    assert saved.config == source.config
    assert (saved.config.rope_scaling.kind, saved.config.rope_theta) == ("linear", 5000.0)
    ours, theirs = source.load_weights(torch.float32, "cpu"), saved.load_weights(torch.float32, "cpu")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert saved.tokenizer.encode("the thing<|im_end|>") == source.tokenizer.encode("the thing<|im_end|>")
    assert saved.chat_template is not None


def test_defaults_and_newer_keys(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    directory = write_tiny_hf_model(
        tmp_path, "llama", head_dim=None, rope_theta=None, rope_parameters=rope, eos_token_id=[0, 2]
    )
    config = open_model(str(directory)).config
    assert (config.head_dim, config.rope_theta, config.eos_token_ids) == (16, 500000.0, (0, 2))
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("llama3", 8.0)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    assert open_model(str(directory)).config.eos_token_ids == (1,)


def test_eos_from_the_tokenizer_where_the_model_names_none(tmp_path: Path) -> None:
    config = open_model(str(write_tiny_hf_model(tmp_path, eos_token_id=None, bos_token_id=None))).config
    assert (config.eos_token_ids, config.bos_token_id) == ((EOS_TOKEN_ID,), BOS_TOKEN_ID)


def test_tied_output_projection_in_the_file_is_not_read(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path, tie_word_embeddings=False)
    config = json.loads((directory / "config.json").read_text()) | {"tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(config))
    assert "lm_head.weight" not in open_model(str(directory)).load_weights(torch.float32, "cpu")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "Gemma3ForConditionalGeneration"),
        ({"architectures": None}, "architectures"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"load_in_4bit": True}}, "quantization"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"sliding_window": 128}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 4}, "model.layers.3"),
        ({"num_hidden_layers": 10**30}, "num_layers"),
        ({"num_hidden_layers": 2}, "has no place"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"vocab_size": 300}, "has shape"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"tie_word_embeddings": False}, "lm_head"),
        ({"eos_token_id": 5000}, "5000"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_refusals_name_the_reason(tmp_path: Path, overrides: dict[str, Any], named: str) -> None:
    directory = write_tiny_hf_model(tmp_path, "llama")
    config = json.loads((directory / "config.json").read_text()) | overrides
    (directory / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    refused(directory, named)


@pytest.mark.parametrize(
    ("settings", "loads"),
    [
        ({"use_sliding_window": False, "sliding_window": 64}, True),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, True),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}, False),
        ({"use_sliding_window": True, "sliding_window": 4096}, True),
    ],
)
def test_only_a_window_in_use_is_refused(tmp_path: Path, settings: dict[str, Any], loads: bool) -> None:
    directory = write_tiny_hf_model(tmp_path, "qwen2", **settings)
    if loads:
        open_model(str(directory))
    else:
        refused(directory, "sliding window")


def test_lora_adapters_and_pickled_weights_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path / "pickled")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    refused(directory, "pickled weights")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    refused(adapter, "LoRA")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    directory = write_tiny_hf_model(tmp_path)
    (directory / name).unlink()
    refused(directory, name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe\x00", b"[" * 100_000, b'{"model": 5, "chat_template": 5}']
)
def test_broken_json(tmp_path: Path, name: str, content: bytes) -> None:
    directory = write_tiny_hf_model(tmp_path)
    (directory / name).write_bytes(content)
    if name == "generation_config.json" and content.startswith(b'{"'):
        open_model(str(directory))  # an object without eos_token_id is a good one
    else:
        refused(directory, name)


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", (1 << 64) - 1),
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 5) + b"{{{{{",
        safetensors({"model.norm.weight": {"dtype": "F32", "shape": [1 << 60], "data_offsets": [0, 4]}}, b"1234"),
        safetensors({"model.norm.weight": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}, b"1234"),
        safetensors({"model.norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234"),
        safetensors({"model.norm.weight": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        safetensors({"model.norm.weight": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        safetensors({"__metadata__": {}}),
        safetensors(["model.norm.weight"]),
    ],
)
def test_safetensors_headers_that_lie(tmp_path: Path, content: bytes) -> None:
    directory = write_tiny_hf_model(tmp_path)
    (directory / "model.safetensors").write_bytes(content)
    refused(directory)


def test_safetensors_cut_anywhere(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path)
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    for cut in range(0, len(whole), len(whole) // 150):
        path.write_bytes(whole[:cut])
        refused(directory, "model.safetensors")


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", 7, "missing.safetensors"])
def test_an_index_may_only_name_files_of_its_directory(tmp_path: Path, name: object) -> None:
    directory = write_tiny_hf_model(tmp_path / "tiny")
    (directory / "model.safetensors").rename(tmp_path / "other.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    refused(directory)


def test_what_is_no_model_says_what_would_be(tmp_path: Path) -> None:
    for name in ("meta-llama/Llama-3.2-1B", "SmolLM2-135M-Instruct"):
        with pytest.raises(ModelLoadError, match=EMBEDDED_MODEL):
            open_model(name)
    (tmp_path / "weights.bin").write_bytes(b"1")
    with pytest.raises(ModelLoadError, match=r"\.gguf"):
        open_model(str(tmp_path / "weights.bin"))
    refused(tmp_path, r"config\.json")


def test_where_the_chat_template_may_be(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text())
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": CHAT_TEMPLATE}]
    for template, prompt in ((CHAT_TEMPLATE, "<|im_start|>user\nhi"), (named, "<|im_start|>user\nhi")):
        path.write_text(json.dumps(config | {"chat_template": template}))
        source = open_model(str(directory))
        assert source.chat_template is not None
        assert source.chat_template.render(messages).startswith(prompt)
    (directory / "chat_template.jinja").write_text("{{ bos_token }}|{{ messages[0].content }}|{{ eos_token }}")
    source = open_model(str(directory))
    assert source.chat_template is not None
    assert source.chat_template.render(messages) == "<|im_start|>|hi|<|im_end|>"
    (directory / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    broken = open_model(str(directory)).chat_template
    assert broken is not None
    with pytest.raises(RequestError, match="no"):
        broken.render(messages)
    (directory / "chat_template.jinja").unlink()
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "chat_template"}))
    assert open_model(str(directory)).chat_template is None
