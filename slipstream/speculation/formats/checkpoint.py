"""From a directory to a drafter, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from slipstream.kernels.protocol import RowKernels
from slipstream.models.config import ModelLoadError
from slipstream.models.files import errors_name, read_json
from slipstream.models.safetensors_weights import SINGLE_FILE, safetensors_files
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.formats import deepspec, speculators, zlab
from slipstream.speculation.formats.fields import Shapes

_FLOATS = ("F64", "F32", "F16", "BF16")
_WHICH_DRAFTED = "t2d"
# Follows from d2t, or the target's own: never read here.
_IGNORED = (_WHICH_DRAFTED, "verifier_lm_head.weight", "verifier_norm.weight")
_IGNORED_SUFFIX = "rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class DrafterCheckpoint:
    """A drafter whose files were found and checked; its weights are read when asked for."""

    directory: Path
    config: DrafterConfig

    def load(self, dtype: torch.dtype, device: torch.device, kernels: RowKernels | None = None) -> DrafterModel:
        """The drafter with its weights. Raises ModelLoadError."""
        with torch.device("meta"):
            model = DrafterModel(self.config, kernels=kernels)
        tensors: dict[str, Tensor] = {}
        for path in safetensors_files(self.directory):
            with errors_name(path), safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    if not _is_ignored(name):
                        values = file.get_tensor(name)
                        tensors[name] = values.to(device, dtype if values.is_floating_point() else None)
        model.load_state_dict(tensors, assign=True)
        with errors_name(self.directory):
            check_target_ids(model.target_ids, self.config.vocab_size)
        return model.requires_grad_(False).eval()


def open_drafter_checkpoint(directory: Path) -> DrafterCheckpoint:
    """Find a drafter and check everything about it but the values of its weights.

    Raises:
        ModelLoadError: it is not there, is of no known format, or its files are broken or do not fit together.
    """
    config_path = directory / "config.json"
    if not config_path.is_file():
        raise ModelLoadError(f"{directory}: no drafter is here: config.json is missing")
    shapes = _tensor_shapes(directory)
    with errors_name(config_path):
        config = read_config(read_json(config_path), shapes)
    with errors_name(directory):
        if (directory / "mask_embedding.pt").exists():
            raise ModelLoadError("a mask embedding of its own (mask_embedding.pt) is not supported")
        _check_shapes(config, shapes)
    return DrafterCheckpoint(directory, config)


def read_config(values: Mapping[str, Any], shapes: Shapes) -> DrafterConfig:
    """Translate a config.json of any known format. Raises ModelLoadError."""
    if speculators.TYPE_KEY in values:
        return speculators.read_speculators(values, shapes)
    names = values.get("architectures")
    names = names if isinstance(names, list) else []
    if zlab.ARCHITECTURE in names:
        return zlab.read_zlab(values, shapes)
    if deepspec.ARCHITECTURE in names:
        return deepspec.read_deepspec(values, shapes)
    raise ModelLoadError(
        f"architectures {names!r:.100} are no drafter's that is supported; supported are {zlab.ARCHITECTURE}, "
        f"{deepspec.ARCHITECTURE}, and the speculators library's dflash and dspark"
    )


def write_drafter(directory: Path, config: DrafterConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a drafter in the speculators format with our additions; `tensors` as `DrafterConfig.tensor_shapes` says.

    With a reduced vocabulary, `t2d` (bool [V_t]: is this token drafted?) stands beside `d2t`: the speculators library
    cannot load such a drafter without. Each file is complete or not there: a run that is cut off leaves the drafter
    that was there before.
    """
    expected = config.tensor_shapes()
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected:
        wrong = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
        raise ValueError(f"these tensors are not those of the configuration: {', '.join(wrong)}")
    text = json.dumps(speculators.speculators_config(config), indent=2) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    weights = directory / (SINGLE_FILE + ".part")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if config.has_reduced_vocabulary:
        target_ids = torch.arange(config.draft_vocab_size) + stored["d2t"]
        stored[_WHICH_DRAFTED] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, target_ids, True)
    save_file(stored, weights, metadata={"format": "pt"})
    weights.replace(directory / SINGLE_FILE)
    part = directory / "config.json.part"
    part.write_text(text, encoding="utf-8")
    part.replace(directory / "config.json")


def check_target_ids(target_ids: Tensor, vocab_size: int) -> None:
    """Refuse a map that leads outside the target's vocabulary, or two draft ids to one token."""
    low, high = int(target_ids.min()), int(target_ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ModelLoadError(f"d2t leads to token {wrong}, outside the target's vocabulary of {vocab_size}")
    if len(torch.unique(target_ids)) != len(target_ids):
        raise ModelLoadError("d2t maps two draft ids to the same token")


def _tensor_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in safetensors_files(directory):
        with errors_name(path), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if _is_ignored(name):
                    continue
                tensor = file.get_slice(name)
                kinds = ("I64",) if name == "d2t" else _FLOATS
                if tensor.get_dtype() not in kinds:
                    raise ModelLoadError(
                        f"tensor {name!r} is stored as {tensor.get_dtype()}; supported are {', '.join(kinds)}"
                    )
                shapes[name] = tuple(tensor.get_shape())
    return shapes


def _check_shapes(config: DrafterConfig, shapes: Shapes) -> None:
    expected = config.tensor_shapes()
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelLoadError(f"tensor {name!r} is missing")
        if shapes[name] != shape:
            raise ModelLoadError(f"tensor {name!r} has shape {shapes[name]}, the configuration says {shape}")
    for name in shapes:
        if name not in expected:
            raise ModelLoadError(
                f"tensor {name!r} has no place in a {config.algorithm.value} drafter of this configuration"
            )


def _is_ignored(name: str) -> bool:
    return name in _IGNORED or name.endswith(_IGNORED_SUFFIX)
