"""Short names for what a model is: of its weights as they are stored, and of its tokenizer.

A drafter keeps those of its target, so that it is not put in front of another model that only has the same shape.
"""

from __future__ import annotations

import hashlib
import math

import torch

from slipstream.kernels.native.groups import Groups, StoredWeight
from slipstream.models.tokenizer import Tokenizer

_SAMPLES = 256  # values per tensor; training changes nearly all of them


class WeightFingerprint:
    """Takes in a model's source tensors, in any order, before they are converted; gives one short text.

    The values are those of the files, so the type and device in use make no difference; another quantization of the
    same model does.
    """

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def add(self, name: str, values: StoredWeight) -> None:
        """One tensor by its Hugging Face name; groups count as the floats they stand for."""
        size = math.prod(values.shape)
        step = max(size // _SAMPLES, 1)
        if isinstance(values, Groups):
            samples = values.elements(torch.arange(0, size, step))
        else:
            samples = values.detach().reshape(-1)[::step].to("cpu", torch.float32).contiguous()
        digest = hashlib.sha256(f"{name} {tuple(values.shape)}".encode())
        digest.update((samples + 0.0).numpy().tobytes())  # a negative zero is a zero
        self._parts[name] = digest.hexdigest()

    def value(self) -> str:
        """16 hexadecimal digits."""
        return hashlib.sha256("\n".join(f"{k} {v}" for k, v in sorted(self._parts.items())).encode()).hexdigest()[:16]


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Which token each id stands for: 16 hexadecimal digits."""
    vocabulary: dict[str, int] = tokenizer.backend.get_vocab(with_added_tokens=True)
    lines = sorted(f"{token_id} {token!r}" for token, token_id in vocabulary.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
