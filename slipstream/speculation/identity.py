"""Whether a drafter was made for a target."""

from __future__ import annotations

from slipstream.models.config import ModelLoadError
from slipstream.models.fingerprint import tokenizer_fingerprint
from slipstream.models.loading import ModelSource
from slipstream.speculation.formats.checkpoint import DrafterCheckpoint


def check_identity(checkpoint: DrafterCheckpoint, target: ModelSource) -> None:
    """Compare all that is known before weights are read: shape, tapped layers, tokenizer.

    Raises:
        ModelLoadError: names what differs.
    """
    config, identity = checkpoint.config, checkpoint.config.target
    pairs = (
        ("a vocabulary of {} tokens", config.vocab_size, target.config.vocab_size),
        ("hidden states of width {}", config.target_hidden_size, target.config.hidden_size),
        ("{} layers", identity.num_layers, target.config.num_layers),
    )
    for words, made_for, found in pairs:
        if made_for is not None and made_for != found:
            raise _made_for_another(
                checkpoint, f"it expects {words.format(made_for)}, {target.name} has {words.format(found)}"
            )
    last = config.target_layer_ids[-1]
    if last >= target.config.num_layers:
        raise _made_for_another(
            checkpoint, f"it reads target layer {last} (0-based), {target.name} has {target.config.num_layers} layers"
        )
    if identity.tokenizer is not None:
        found_tokenizer = tokenizer_fingerprint(target.tokenizer)
        if identity.tokenizer != found_tokenizer:
            raise _made_for_another(
                checkpoint,
                f"its tokenizer's fingerprint is {identity.tokenizer}, that of {target.name} is {found_tokenizer}",
            )


def check_weights(checkpoint: DrafterCheckpoint, found: str | None) -> None:
    """Compare the fingerprint of the target's source weights, where both are known. Raises ModelLoadError."""
    expected = checkpoint.config.target.weights
    if expected is not None and found is not None and expected != found:
        raise _made_for_another(checkpoint, f"its target's weights have the fingerprint {expected}, these {found}")


def _made_for_another(checkpoint: DrafterCheckpoint, reason: str) -> ModelLoadError:
    name = checkpoint.config.target.name
    return ModelLoadError(
        f"{checkpoint.directory}: this drafter was made for another target"
        + (f" ({name})" if name else "")
        + f": {reason}. Give a drafter of this model, or --speculative-config none"
    )
