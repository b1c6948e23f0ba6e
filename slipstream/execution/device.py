"""Which device and number format to run on."""

from __future__ import annotations

import torch

from slipstream.config import DTYPES, SettingError


def resolve_device(name: str) -> torch.device:
    """`auto` is the CUDA device where there is one, else the CPU.

    Raises:
        SettingError: no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"--device {name!r} is not a device; use auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"--device {name!r} is not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError(f"--device {name!r}: PyTorch finds no CUDA device here; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"--device {name!r}: there are {torch.cuda.device_count()} CUDA devices, the first is cuda:0"
        )
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it in hardware, else float32.

    Raises:
        SettingError: not one of DTYPES.
    """
    if name not in DTYPES:
        raise SettingError(f"--dtype {name!r} is not known; choose one of {', '.join(DTYPES)}")
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products run in hardware. Without, PyTorch emulates them far slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # torch.cpu names these with an underscore and has no public form; a PyTorch without them is treated as without.
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check is not None and check() for check in checks)
