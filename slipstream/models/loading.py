"""From what the user calls a model to everything an engine needs of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from slipstream.config import EMBEDDED_MODEL
from slipstream.kernels.native.groups import StoredWeight
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.config import DecoderConfig, ModelLoadError
from slipstream.models.embedded import ensure_embedded_model
from slipstream.models.files import errors_name, get_str, read_json
from slipstream.models.fingerprint import WeightFingerprint
from slipstream.models.gguf_file import GGUFFile
from slipstream.models.gguf_groups import read_gguf_groups
from slipstream.models.gguf_model import gguf_architecture, gguf_config, gguf_vocab_size, read_gguf_weights
from slipstream.models.gguf_tokenizer import gguf_tokenizer
from slipstream.models.hf_config import hf_config
from slipstream.models.hf_tokenizer import read_hf_chat_template, read_hf_tokenizer
from slipstream.models.safetensors_weights import check_safetensors, read_safetensors, safetensors_files
from slipstream.models.tokenizer import Tokenizer

AnyWeight = TypeVar("AnyWeight", bound=StoredWeight)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose files were found and checked; its weights are read when asked for.

    Attributes:
        name: what clients call it, unless the user names it otherwise.
        config: shape of the decoder.
        tokenizer: of this model.
        chat_template: None when the model has none and takes plain prompts only.
        tensors: reads the weights, one (Hugging Face name, values) at a time.
        stored: the same without dequantising what the file holds in groups (kernels/native/groups.py).
        progress: show a bar while reading weights, if someone looks at a terminal.
    """

    name: str
    config: DecoderConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]
    stored: Callable[[], Iterator[tuple[str, StoredWeight]]]
    progress: bool = False

    def load_weights(
        self, dtype: torch.dtype, device: torch.device | str, fingerprint: WeightFingerprint | None = None
    ) -> dict[str, torch.Tensor]:
        """All weights by Hugging Face name, shaped as `DecoderConfig.tensor_shapes` says; no `lm_head.weight` if tied.

        Only one tensor at a time exists in another type than `dtype`. `fingerprint` takes in each as it is stored.
        """
        weights: dict[str, torch.Tensor] = {}
        for name, values in self._shown(self.tensors()):
            if fingerprint is not None:
                fingerprint.add(name, values)
            weights[name] = values.to(device=device, dtype=dtype)
        return weights

    def load_stored(self, fingerprint: WeightFingerprint | None = None) -> dict[str, StoredWeight]:
        """All weights as `load_weights` gives them, but in the form of the file."""
        weights: dict[str, StoredWeight] = {}
        for name, values in self._shown(self.stored()):
            if fingerprint is not None:
                fingerprint.add(name, values)
            weights[name] = values
        return weights

    def fingerprint(self) -> str:
        """Of the weights as they are stored (models/fingerprint.py); reads them all. Raises ModelLoadError."""
        found = WeightFingerprint()
        for name, values in self.stored():
            found.add(name, values)
        return found.value()

    def _shown(self, weights: Iterator[tuple[str, AnyWeight]]) -> Iterator[tuple[str, AnyWeight]]:
        """The same weights, with a bar."""
        console = Console(stderr=True)
        columns = (TextColumn("Loading weights"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console, disable=not (self.progress and console.is_terminal)) as bar:
            task = bar.add_task("", total=len(self.config.tensor_shapes()))
            for entry in weights:
                yield entry
                bar.advance(task)


def open_model(model: str, *, progress: bool = True) -> ModelSource:
    """Find a model and check everything about it but the values of its weights.

    Args:
        model: the embedded model's name (fetched on first use), a `.gguf` file, or a Hugging Face directory.
        progress: show bars while fetching and loading.

    Raises:
        ModelLoadError: it is not there, is not supported, or its files are broken.
    """
    if model == EMBEDDED_MODEL:
        return _open_gguf(ensure_embedded_model(progress=progress), EMBEDDED_MODEL, progress)
    path = Path(os.path.expanduser(model))
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise ModelLoadError(f"--model {model[:80]}: cannot be looked up ({error.strerror or error})") from None
    if is_directory:
        return _open_directory(path, progress)
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(f"--model {model}: a model file must be a .gguf; give a GGUF file or a directory")
        return _open_gguf(path, path.stem, progress)
    raise ModelLoadError(
        f"--model {model}: no such file or directory. Give a .gguf file, a Hugging Face directory "
        f"(models are not fetched from the Hub), or {EMBEDDED_MODEL!r}, which is fetched by itself"
    )


def _open_gguf(path: Path, name: str, progress: bool) -> ModelSource:
    file = GGUFFile(path)
    with errors_name(path):
        architecture = gguf_architecture(file)
        tokenizer = gguf_tokenizer(file.metadata, vocab_size=gguf_vocab_size(file))
        config = gguf_config(file, architecture, tokenizer)
        template = None
        if "tokenizer.chat_template" in file.metadata:
            ids = {"bos_token": config.bos_token_id, "eos_token": next(iter(config.eos_token_ids), None)}
            tokens = {key: tokenizer.token_text(token_id) for key, token_id in ids.items() if token_id is not None}
            template = ChatTemplate(get_str(file.metadata, "tokenizer.chat_template"), special_tokens=tokens)
    return ModelSource(
        name,
        config,
        tokenizer,
        template,
        lambda: read_gguf_weights(file, config),
        lambda: read_gguf_groups(file, config),
        progress,
    )


def _open_directory(directory: Path, progress: bool) -> ModelSource:
    if (directory / "adapter_config.json").is_file():
        raise ModelLoadError(
            f"{directory}: a LoRA adapter (adapter_config.json) is not supported; merge it into its base model first"
        )
    config_path, generation_path = directory / "config.json", directory / "generation_config.json"
    if not config_path.is_file():
        raise ModelLoadError(f"{directory}: config.json is missing; a Hugging Face model directory has one")
    with errors_name(config_path):
        values = read_json(config_path)
        generation = read_json(generation_path) if generation_path.is_file() else {}
        config = hf_config(values, generation)
    paths = safetensors_files(directory)
    check_safetensors(paths, config)
    tokenizer = read_hf_tokenizer(directory, config.eos_token_ids, config.bos_token_id)
    with errors_name(directory / "tokenizer_config.json"):
        config = replace(config, eos_token_ids=tokenizer.eos_token_ids, bos_token_id=tokenizer.bos_token_id)
    template = read_hf_chat_template(directory)
    return ModelSource(
        directory.resolve().name,
        config,
        tokenizer,
        template,
        lambda: read_safetensors(paths, config),
        lambda: read_safetensors(paths, config),
        progress,
    )
