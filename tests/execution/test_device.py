"""Device and dtype: what `auto` means, and refusals that name what works."""

from __future__ import annotations

import pytest
import torch

from slipstream.config import SettingError
from slipstream.execution import device as device_module
from slipstream.execution.device import resolve_device, resolve_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(("in_hardware", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_follows_the_hardware(
    monkeypatch: pytest.MonkeyPatch, in_hardware: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(device_module, "multiplies_bfloat16", lambda device: in_hardware)
    assert resolve_dtype("auto", CPU) == dtype


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_dtype_is_taken(name: str) -> None:
    assert resolve_dtype(name, CPU) == getattr(torch, name)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(SettingError, match=r"fp8.*bfloat16"):
        resolve_dtype("fp8", CPU)


def test_a_pytorch_without_the_cpu_checks_counts_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert not device_module.multiplies_bfloat16(CPU)


def test_auto_device_without_cuda_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(SettingError, match="no CUDA device"):
        resolve_device("cuda")


@pytest.mark.parametrize("name", ["tpu", "mps", "cuda:banana"])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match="cpu"):
        resolve_device(name)
