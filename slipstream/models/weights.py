"""What holds for weights from any kind of file: which must be there, and in what shape."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.models.config import DecoderConfig, ModelLoadError

# Tables that older exporters wrote beside the weights; they follow from the configuration.
_DERIVED_SUFFIXES = (".rotary_emb.inv_freq",)


def check_shapes(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare a file's tensors, by Hugging Face name, with what the configuration asks for.

    Raises:
        ModelLoadError: one is missing, of another shape, or of no use here (it would change the model's answers).
    """
    expected = config.tensor_shapes()
    for name, shape in expected.items():
        if name not in shapes:
            raise ModelLoadError(f"tensor {name!r} is missing")
        if tuple(shapes[name]) != shape:
            raise ModelLoadError(f"tensor {name!r} has shape {tuple(shapes[name])}, the configuration says {shape}")
    for name in shapes:
        if name not in expected and not is_derived(name, config):
            raise ModelLoadError(f"tensor {name!r} has no place in a {config.architecture} model of this configuration")


def is_derived(name: str, config: DecoderConfig) -> bool:
    """A tensor that may be in the file but is not read: it repeats what is known."""
    return name.endswith(_DERIVED_SUFFIXES) or (config.tie_word_embeddings and name == "lm_head.weight")
