"""Which arithmetic the settings come to, and refusals that name the obstacle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models.tiny_models import write_tiny_hf_model

from slipstream.config import ModelSettings, SettingError
from slipstream.execution import arithmetic as module
from slipstream.execution.arithmetic import resolve_arithmetic
from slipstream.execution.build import build_decoder, thread_count
from slipstream.kernels.native.library import open_library
from slipstream.models.config import DecoderConfig
from slipstream.models.decoder import Decoder
from slipstream.models.loading import ModelSource, open_model
from slipstream.models.native_decoder import NativeDecoder

CPU = ModelSettings(device="cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return open_model(str(write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")), progress=False)


@pytest.fixture
def built() -> None:
    if open_library() is None:
        pytest.skip("the native library was not built (no C++ compiler)")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("settings", "quantization", "cache_dtype"),
    [
        ({}, "int8", torch.bfloat16),
        ({"quantization": "int8"}, "int8", torch.bfloat16),
        ({"quantization": "int8", "dtype": "float32"}, "int8", torch.float32),
        ({"quantization": "int8", "dtype": "bfloat16"}, "int8", torch.bfloat16),
        ({"dtype": "float32"}, "none", torch.float32),
        ({"quantization": "none", "dtype": "float32"}, "none", torch.float32),
    ],
)
def test_what_settings_come_to(
    source: ModelSource, settings: dict[str, str], quantization: str, cache_dtype: torch.dtype
) -> None:
    found = resolve_arithmetic(replace(CPU, **settings), source.config)
    assert (found.quantization, found.cache_dtype) == (quantization, cache_dtype)
    decoder = build_decoder(source, replace(CPU, max_model_len=64, num_threads=1, **settings))
    assert isinstance(decoder, NativeDecoder if quantization == "int8" else Decoder)
    assert decoder.cache_dtype == decoder.make_cache(4, 16).layers[0].dtype == cache_dtype
    assert decoder.source_fingerprint == source.fingerprint()


def test_without_the_library_auto_is_none_and_int8_is_refused(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_library", lambda: None)
    found = resolve_arithmetic(CPU, source.config)
    assert found.quantization == "none" and "not built" in found.reason
    with pytest.raises(SettingError, match=r"--quantization int8.*not built.*--quantization none"):
        resolve_arithmetic(replace(CPU, quantization="int8"), source.config)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("changes", "named"),
    [({"hidden_size": 80}, "hidden size"), ({"intermediate_size": 100}, "intermediate"), ({"head_dim": 24}, "head")],
)
def test_shapes_that_the_kernels_do_not_take(source: ModelSource, changes: dict[str, int], named: str) -> None:
    config: DecoderConfig = replace(source.config, **changes)
    found = resolve_arithmetic(CPU, config)
    assert found.quantization == "none" and named in found.reason
    with pytest.raises(SettingError, match=named):
        resolve_arithmetic(replace(CPU, quantization="int8"), config)


@pytest.mark.usefixtures("built")
def test_half_precision_kv_is_refused(source: ModelSource) -> None:
    with pytest.raises(SettingError, match=r"float16.*bfloat16 and float32"):
        resolve_arithmetic(replace(CPU, quantization="int8", dtype="float16"), source.config)


@pytest.mark.parametrize(
    ("stated", "setting", "count"), [("3", None, 3), ("2,1", None, 2), ("3", 5, 5), ("none", None, None)]
)
def test_threads(monkeypatch: pytest.MonkeyPatch, stated: str, setting: int | None, count: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert thread_count(setting) == (4 if count is None else count)
