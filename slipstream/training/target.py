"""The target as training sees it: one copy of its weights, in the type it is served in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.paged import PagedAttention
from slipstream.config import ModelSettings
from slipstream.execution.arithmetic import resolve_arithmetic
from slipstream.execution.build import build_decoder, set_threads
from slipstream.execution.device import resolve_dtype
from slipstream.kernels.fast import FastKernels
from slipstream.models.decoder import Decoder
from slipstream.models.fingerprint import WeightFingerprint, tokenizer_fingerprint
from slipstream.models.loading import ModelSource
from slipstream.models.protocol import TransformerDecoder
from slipstream.speculation.drafter_config import TargetIdentity


@dataclass(frozen=True, slots=True)
class TrainingTarget:
    """A loaded target.

    Attributes:
        decoder: as the target is served, so that its states and choices are those that a drafter will meet.
        weights: by Hugging Face name, dense; a Decoder shares what it does not fuse.
        identity: what a drafter of it keeps.
        compute: type of products in training: bfloat16 where the device multiplies it in hardware.
    """

    source: ModelSource
    decoder: TransformerDecoder
    weights: Mapping[str, Tensor]
    identity: TargetIdentity
    compute: torch.dtype

    @classmethod
    def load(cls, source: ModelSource, settings: ModelSettings) -> TrainingTarget:
        """Read the weights. Raises SettingError, ModelLoadError."""
        arithmetic = resolve_arithmetic(settings, source.config)
        kind = resolve_dtype(settings.dtype, arithmetic.device)
        fingerprint = WeightFingerprint()
        weights = source.load_weights(kind, arithmetic.device, fingerprint)
        decoder: TransformerDecoder
        if arithmetic.library is None:
            decoder = Decoder(source.config, weights, kernels=FastKernels(), attention=PagedAttention())
        else:
            decoder = build_decoder(source, settings)
        if arithmetic.device.type == "cpu":
            set_threads(settings.num_threads)
        identity = TargetIdentity(
            name=source.name,
            vocab_size=source.config.vocab_size,
            hidden_size=source.config.hidden_size,
            num_layers=source.config.num_layers,
            weights=fingerprint.value(),
            tokenizer=tokenizer_fingerprint(source.tokenizer),
        )
        return cls(source, decoder, weights, identity, kind)

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden]."""
        return self.weights["model.embed_tokens.weight"]

    @property
    def head(self) -> Tensor:
        """Output projection [vocabulary, hidden]."""
        return self.embedding if self.source.config.tie_word_embeddings else self.weights["lm_head.weight"]
