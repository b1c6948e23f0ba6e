"""How a model's arithmetic runs on a device: number formats, and whether in the native library."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream.config import ModelSettings, SettingError
from slipstream.execution.device import resolve_device, resolve_dtype
from slipstream.kernels.native.library import NativeLibrary, open_library
from slipstream.models.config import DecoderConfig
from slipstream.models.native_decoder import misfit

_CACHE_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What the settings come to.

    Attributes:
        dtype: of hidden states, and of weights that are not quantised. cache_dtype: of KV.
        library: which runs the quantised weights; None where they are not quantised.
        reason: why, where the settings left it open.
    """

    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    library: NativeLibrary | None
    reason: str

    @property
    def quantization(self) -> str:
        """`int8` or `none`."""
        return "none" if self.library is None else "int8"

    @property
    def description(self) -> str:
        """For labels of measurements: everything of it that changes speed."""
        if self.library is None:
            return str(self.dtype).removeprefix("torch.")
        return f"int8, {self.library.best_path.name.lower()}"


def resolve_arithmetic(settings: ModelSettings, config: DecoderConfig) -> Arithmetic:
    """Decide `--device`, `--dtype` and `--quantization` for a model of this shape.

    Raises:
        SettingError: no such device or type here, or `--quantization int8` where it cannot run.
    """
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    wanted = settings.quantization
    library = None if wanted == "none" else open_library()
    obstacle = _obstacle(settings.dtype, config, device, library)
    if wanted == "int8" and obstacle is not None:
        raise SettingError(f"--quantization int8: {obstacle}; the nearest that works is --quantization none")
    if wanted == "auto" and settings.dtype != "auto":
        obstacle = f"--dtype {settings.dtype} was asked for"
    if wanted == "none" or obstacle is not None:
        return Arithmetic(device, dtype, dtype, None, obstacle or "")
    reason = "the native kernels run it" if wanted == "auto" else ""
    return Arithmetic(device, torch.float32, _CACHE_DTYPES[settings.dtype], library, reason)


def _obstacle(dtype: str, config: DecoderConfig, device: torch.device, library: NativeLibrary | None) -> str | None:
    """Why quantised weights cannot run here."""
    if device.type != "cpu":
        return f"its kernels run on a CPU, not on {device}"
    if dtype not in _CACHE_DTYPES:
        return f"KV of --dtype {dtype} is not supported, only {' and '.join(k for k in _CACHE_DTYPES if k != 'auto')}"
    if library is None:
        return "the native library was not built with this package (it needs a C++20 compiler)"
    return misfit(config)
