"""The target as training sees it: one copy of its weights, in the type it is served in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.paged import PagedAttention
from slipstream.execution.build import set_threads
from slipstream.execution.device import resolve_device, resolve_dtype
from slipstream.kernels.fast import FastKernels
from slipstream.models.decoder import Decoder
from slipstream.models.fingerprint import WeightFingerprint, tokenizer_fingerprint
from slipstream.models.loading import ModelSource
from slipstream.speculation.drafter_config import TargetIdentity


@dataclass(frozen=True, slots=True)
class TrainingTarget:
    """A loaded target.

    Attributes:
        weights: by Hugging Face name; the decoder shares what it does not fuse.
        identity: what a drafter of it keeps.
        compute: type of products in training: bfloat16 where the device multiplies it in hardware.
    """

    source: ModelSource
    decoder: Decoder
    weights: Mapping[str, Tensor]
    identity: TargetIdentity
    compute: torch.dtype

    @classmethod
    def load(
        cls, source: ModelSource, *, device: str = "auto", dtype: str = "auto", num_threads: int | None = None
    ) -> TrainingTarget:
        """Read the weights. Raises SettingError, ModelLoadError."""
        place = resolve_device(device)
        kind = resolve_dtype(dtype, place)
        if place.type == "cpu":
            set_threads(num_threads)
        fingerprint = WeightFingerprint()
        weights = source.load_weights(kind, place, fingerprint)
        decoder = Decoder(source.config, weights, kernels=FastKernels(), attention=PagedAttention())
        identity = TargetIdentity(
            name=source.name,
            vocab_size=source.config.vocab_size,
            hidden_size=source.config.hidden_size,
            num_layers=source.config.num_layers,
            weights=fingerprint.value(),
            tokenizer=tokenizer_fingerprint(source.tokenizer),
        )
        return cls(source, decoder, weights, identity, kind)
