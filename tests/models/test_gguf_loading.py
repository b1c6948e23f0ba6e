"""GGUF files give the same model as the weights that they were made from; others are refused by name."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tiny_gguf import write_tiny_gguf
from tiny_models import ARCHITECTURES, EOS_TOKEN_ID, tiny_config, tiny_tokenizer

from slipstream.models.config import ModelLoadError
from slipstream.models.embedded import ensure_embedded_model
from slipstream.models.hf_config import hf_config
from slipstream.models.loading import open_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_config_and_tokenizer_come_back(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "tiny.gguf"
    written = write_tiny_gguf(path, architecture)
    source = open_model(str(path), progress=False)
    loaded = source.load_weights(torch.float32, "cpu")
    assert loaded.keys() == written.keys() == source.config.tensor_shapes().keys()
    for name, values in written.items():
        assert torch.equal(loaded[name], values), name
    expected = hf_config(tiny_config(architecture), {})
    assert source.config.rms_norm_eps == pytest.approx(expected.rms_norm_eps)
    for field in ("architecture", "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads",
                  "num_kv_heads", "head_dim", "rope_theta", "rope_scaling", "max_position", "tie_word_embeddings",
                  "qk_norm", "attention_bias", "eos_token_ids", "bos_token_id"):  # fmt: skip
        assert getattr(source.config, field) == getattr(expected, field), field
    assert source.name == "tiny"
    assert source.tokenizer.encode("the thing and 😀") == tiny_tokenizer().encode("the thing and 😀").ids
    assert source.chat_template is not None
    assert source.chat_template.render([{"role": "user", "content": "hi"}]).endswith("<|im_start|>assistant\n")


def test_transformers_reads_the_same_llama_weights(tmp_path: Path) -> None:
    """The order of q and k rows is a convention of llama.cpp's; an independent reader agrees with ours."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    write_tiny_gguf(tmp_path / "tiny.gguf", "llama", quantization=gguf.GGMLQuantizationType.Q8_0)
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    model = transformers.LlamaForCausalLM(config)
    oracle = load_gguf_checkpoint(str(tmp_path / "tiny.gguf"), return_tensors=True, model_to_load=model)["tensors"]
    loaded = open_model(str(tmp_path / "tiny.gguf")).load_weights(torch.float32, "cpu")
    assert loaded.keys() == oracle.keys()
    for name, values in loaded.items():
        assert torch.equal(values, oracle[name]), name


@pytest.mark.slow
@pytest.mark.model
def test_transformers_reads_the_same_weights_of_the_embedded_model() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    shape = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    path = ensure_embedded_model()
    oracle = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    loaded = open_model(str(path)).load_weights(torch.float32, "cpu")
    assert loaded.keys() == oracle.keys()
    for name, values in loaded.items():
        assert torch.equal(values, oracle[name]), name


def test_query_and_key_biases_of_llama_are_reordered_with_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    biases = {f"blk.{i}.attn_{kind}.bias": np.arange(size, dtype=np.float32)
              for i in range(3) for kind, size in (("q", 64), ("k", 32), ("v", 32))}  # fmt: skip
    write_tiny_gguf(path, "llama", tensors=biases)
    source = open_model(str(path))
    assert source.config.attention_bias
    weights = source.load_weights(torch.float32, "cpu")
    head = torch.cat([torch.arange(0, 16, 2), torch.arange(1, 16, 2)])
    assert torch.equal(weights["model.layers.0.self_attn.k_proj.bias"], torch.cat([head, head + 16]).float())
    assert torch.equal(weights["model.layers.0.self_attn.v_proj.bias"], torch.arange(32.0))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_tensors_are_dequantised(tmp_path: Path, kind: str) -> None:
    kind_code = gguf.GGMLQuantizationType[kind]
    written = write_tiny_gguf(tmp_path / "tiny.gguf", "qwen3", quantization=kind_code)
    source = open_model(str(tmp_path / "tiny.gguf"))
    loaded = source.load_weights(torch.float32, "cpu")
    name = "model.layers.1.mlp.down_proj.weight"
    blocks = gguf.quants.quantize(written[name].numpy(), kind_code)
    assert np.array_equal(loaded[name].numpy(), gguf.quants.dequantize(blocks, kind_code))
    assert not torch.equal(loaded[name], written[name])
    assert source.load_weights(torch.bfloat16, "cpu")[name].dtype == torch.bfloat16


def llama3_divisors(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """Written after the description in Meta's model card: by wavelength, one frequency at a time."""
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192 / 1:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_llama3_rope_factors_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    factors = llama3_divisors(500000.0, 64, 32.0)
    assert len(set(factors.tolist())) > 3  # some frequencies kept, some divided, some between
    shape = {"head_dim": 64, "rope_theta": 500000.0}
    write_tiny_gguf(path, "llama", tensors={"rope_freqs.weight": factors}, **shape)
    scaling = open_model(str(path)).config.rope_scaling
    assert (scaling.kind, scaling.factor, scaling.original_max_position) == ("llama3", 32.0, 8192)
    write_tiny_gguf(path, "llama", tensors={"rope_freqs.weight": factors * np.linspace(1, 1.5, 32)}, **shape)
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight"):
        open_model(str(path))


def test_linear_rope_scaling(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, "llama", metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    scaling = open_model(str(path)).config.rope_scaling
    assert (scaling.kind, scaling.factor) == ("linear", 4.0)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "gemma2"}, "gemma2"),
        ({"general.type": "adapter"}, "adapter"),
        ({"split.count": 3}, "split"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
        ({"llama.attention.sliding_window": 128}, "sliding window"),
        ({"llama.attention.head_count_kv": [2, 2, 1]}, "head_count_kv"),
        ({"llama.attention.head_count_kv": 3}, "num_kv_heads"),
        ({"llama.block_count": 4}, "blk|model.layers.3"),
        ({"llama.block_count": 4_000_000_000}, "num_layers"),
        ({"llama.embedding_length": None}, "embedding_length"),
        ({"llama.embedding_length": "64"}, "embedding_length"),
        ({"llama.context_length": 0}, "max_position"),
        ({"llama.rope.freq_base": float("nan")}, "rope_theta"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "rms_norm_eps"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "tekken"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "2 tokens"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
        ({"tokenizer.ggml.merges": ["a"]}, "merges"),
        ({"tokenizer.ggml.merges": ["a qqq"]}, "merges"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "token_type"),
        ({"tokenizer.ggml.eos_token_id": 99999}, "eos_token_id"),
        ({"tokenizer.chat_template": "{% for %}"}, "chat template"),
        ({"general.alignment": 3}, "alignment"),
    ],
)
def test_refusals_name_the_reason_and_the_file(tmp_path: Path, metadata: dict[str, object], named: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, "llama", metadata=metadata)
    with pytest.raises(ModelLoadError, match=named) as caught:
        open_model(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("blk.1.ffn_up.weight", None),
        ("blk.1.ffn_up.weight", np.ones((96, 32))),
        ("blk.0.attn_output.bias", np.ones(64)),
        ("blk.0.ffn_gate_inp.weight", np.ones((8, 64))),
        ("output_norm.weight", np.ones(65)),
        ("token_embd.weight", np.ones(64)),
    ],
)
def test_missing_misshapen_and_surplus_tensors_are_refused(
    tmp_path: Path, name: str, tensor: np.ndarray | None
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, "llama", tensors={name: tensor})
    with pytest.raises(ModelLoadError, match="tensor"):
        open_model(str(path))


def test_nan_weights_load(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", tensors={"output_norm.weight": np.full(64, np.nan)})
    assert open_model(str(tmp_path / "tiny.gguf")).load_weights(torch.float32, "cpu")["model.norm.weight"].isnan().all()


def test_bos_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, metadata={"tokenizer.ggml.add_bos_token": True})
    tokenizer = open_model(str(path)).tokenizer
    plain = tokenizer.encode("the", add_special_tokens=False)
    assert tokenizer.encode("the") == [tokenizer.bos_token_id, *plain]
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    write_tiny_gguf(path, pre_tokenizer="llama-bpe", metadata={"tokenizer.ggml.add_bos_token": None})
    assert open_model(str(path)).tokenizer.encode("the")[0] == tokenizer.bos_token_id


def test_every_end_of_turn_token_ends_the_text(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.eot_token_id": 0})
    assert open_model(str(tmp_path / "tiny.gguf")).config.eos_token_ids == (EOS_TOKEN_ID, 0)
