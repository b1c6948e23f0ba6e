"""Weights of a Hugging Face directory: one safetensors file, or several with an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from slipstream.models.config import DecoderConfig, ModelLoadError
from slipstream.models.files import errors_name, read_json
from slipstream.models.weights import check_shapes, is_derived

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_PICKLED = ("pytorch_model*.bin", "pytorch_model.bin.index.json", "*.pt", "*.pth", "consolidated.*.pth")


def safetensors_files(directory: Path) -> list[Path]:
    """The directory's weight files.

    Raises:
        ModelLoadError: there are none, only pickled ones, or the index names files outside the directory.
    """
    single = directory / SINGLE_FILE
    if single.is_file():
        return [single]
    index = directory / INDEX_FILE
    if index.is_file():
        with errors_name(index):
            names = read_json(index).get("weight_map")
            if not isinstance(names, dict) or not names:
                raise ModelLoadError("weight_map is missing or empty")
            for name in names.values():
                if not isinstance(name, str) or Path(name).name != name:
                    raise ModelLoadError(f"weight_map names {name!r}, which is no file of this directory")
            return [directory / name for name in sorted(set(names.values()))]
    if any(any(directory.glob(pattern)) for pattern in _PICKLED):
        raise ModelLoadError(
            f"{directory}: pickled weights (pytorch_model.bin) are not supported, as loading them can run any code; "
            "convert them to model.safetensors"
        )
    raise ModelLoadError(f"{directory}: neither {SINGLE_FILE} nor {INDEX_FILE} is there")


def check_safetensors(paths: list[Path], config: DecoderConfig) -> None:
    """Check names, shapes and types of all tensors by the files' headers; reads no weight."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        with errors_name(path), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensor = file.get_slice(name)
                if name in shapes:
                    raise ModelLoadError(f"tensor {name!r} is in two files")
                if tensor.get_dtype() not in _FLOATS:
                    raise ModelLoadError(
                        f"tensor {name!r} is stored as {tensor.get_dtype()}; supported are {', '.join(_FLOATS)}"
                    )
                shapes[name] = tuple(tensor.get_shape())
    with errors_name(paths[0].parent):
        check_shapes(config, shapes)


def read_safetensors(paths: list[Path], config: DecoderConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and values of each weight in its stored type, one at a time."""
    for path in paths:
        with errors_name(path), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if not is_derived(name, config):
                    yield name, file.get_tensor(name)
