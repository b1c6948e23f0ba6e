"""Speculation methods between their settings and a running drafter (DrafterSource)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.attention.cache import kv_bytes_per_token
from slipstream.attention.invariant import InvariantAttention
from slipstream.config import MODEL_DRAFTERS, SettingError, SpeculativeSettings
from slipstream.models.config import ModelLoadError
from slipstream.models.decoder import Decoder
from slipstream.models.fingerprint import tokenizer_fingerprint
from slipstream.models.loading import ModelSource, open_model
from slipstream.models.native_decoder import NativeDecoder, misfit
from slipstream.models.protocol import TransformerDecoder
from slipstream.scheduler.layouts import LAYOUTS, DraftLayout
from slipstream.scheduler.protocol import Drafter
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.chain import ChainDrafter
from slipstream.speculation.draft_model import DraftModelDrafter
from slipstream.speculation.formats.checkpoint import DrafterCheckpoint, open_drafter_checkpoint
from slipstream.speculation.identity import check_identity, check_weights
from slipstream.speculation.network import drafter_kernels
from slipstream.speculation.serving import DrafterSource, ServingDrafter, ServingTarget

_FLAG = "--speculative-config"


@dataclass(frozen=True, slots=True)
class PlainSource:
    """A drafter without a model of its own: it is ready at once, and drafts for any target."""

    settings: SpeculativeSettings
    drafter: Drafter

    @property
    def layout(self) -> DraftLayout:
        """See DrafterSource."""
        return self.drafter.layout

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """See DrafterSource; none."""
        return 0

    def check_target(self, target: ModelSource) -> None:
        """See DrafterSource; any will do."""

    def build(self, target: ServingTarget | None) -> ServingDrafter:
        """See DrafterSource."""
        return ServingDrafter(self.drafter)


@dataclass(frozen=True, slots=True)
class BlockDrafterSource:
    """A DFlash or DSpark checkpoint."""

    settings: SpeculativeSettings
    checkpoint: DrafterCheckpoint

    @property
    def layout(self) -> DraftLayout:
        """See DrafterSource; that of the checkpoint, whatever the method is called."""
        return self.checkpoint.config.draft_layout

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """See DrafterSource."""
        config = self.checkpoint.config
        return kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype)

    def check_target(self, target: ModelSource) -> None:
        """See DrafterSource."""
        check_identity(self.checkpoint, target)

    def build(self, target: ServingTarget | None) -> ServingDrafter:
        """See DrafterSource."""
        if target is None:
            raise SettingError(
                f"{_FLAG}: method {self.settings.method!r} reads the hidden states of a real model; "
                "without one, use 'ngram' or 'forced'"
            )
        decoder = target.decoder
        check_weights(self.checkpoint, decoder.source_fingerprint)
        model = self.checkpoint.load(decoder.dtype, decoder.device, drafter_kernels(decoder))
        drafter = BlockDrafter(model, target, sample_method=self.settings.chosen_draft_sample_method)
        return ServingDrafter(drafter, drafter)


@dataclass(frozen=True, slots=True)
class DraftModelSource:
    """A second, smaller model."""

    settings: SpeculativeSettings
    source: ModelSource

    @property
    def layout(self) -> DraftLayout:
        """See DrafterSource."""
        return LAYOUTS["draft_model"]

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """See DrafterSource."""
        config = self.source.config
        return kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype)

    def check_target(self, target: ModelSource) -> None:
        """See DrafterSource: both must write the same tokens with the same ids."""
        own, other = (tokenizer_fingerprint(source.tokenizer) for source in (self.source, target))
        if own != other:
            raise ModelLoadError(
                f"{_FLAG}: the draft model {self.source.name} has another tokenizer than {target.name} "
                f"(fingerprints {own} and {other}), so its drafts would be other words. "
                f"Give a smaller model of the same family, or {_FLAG} none"
            )

    def build(self, target: ServingTarget | None) -> ServingDrafter:
        """See DrafterSource."""
        if target is None:
            raise SettingError(f"{_FLAG}: method 'draft_model' needs a real model to draft for")
        decoder = target.decoder
        small = decoder_beside(decoder, self.source)
        drafter = DraftModelDrafter(small, target, sample_method=self.settings.chosen_draft_sample_method)
        return ServingDrafter(drafter, drafter)


def decoder_beside(target: TransformerDecoder, source: ModelSource) -> TransformerDecoder:
    """A second model on the target's kernels, for the same positions. Raises ModelLoadError."""
    if isinstance(target, NativeDecoder) and misfit(source.config) is None:
        return NativeDecoder(
            source.config,
            source.load_stored(),
            workers=target.workers,
            path=target.path,
            cache_dtype=target.cache_dtype,
            num_positions=target.num_positions,
        )
    return Decoder(
        source.config,
        source.load_weights(target.dtype, target.device),
        kernels=drafter_kernels(target),
        attention=target.attention if isinstance(target, Decoder) else InvariantAttention(),
        num_positions=target.num_positions,
    )


def open_draft_model(settings: SpeculativeSettings) -> DraftModelSource:
    """Open a model as a drafter; it drafts no further than its own positions. Raises SettingError, ModelLoadError."""
    source = open_model(settings.model or "", progress=False)
    limit = _position_limit(settings, source.config.max_position)
    decided = dataclasses.replace(settings, num_speculative_tokens=settings.num_drafts, draft_max_model_len=limit)
    return DraftModelSource(decided, source)


def _position_limit(settings: SpeculativeSettings, most: int) -> int:
    """Where drafting ends: where the drafter's positions do, or before."""
    limit = most if settings.draft_max_model_len is None else settings.draft_max_model_len
    if limit > most:
        raise SettingError(
            f"{_FLAG}: draft_max_model_len {limit} is more than the {most} positions that "
            f"{settings.model} was made for, the nearest that works"
        )
    return limit


@dataclass(frozen=True, slots=True)
class ChainSource:
    """Several methods in a row (chain.py)."""

    settings: SpeculativeSettings
    parts: Mapping[str, DrafterSource]

    @property
    def layout(self) -> DraftLayout:
        """See DrafterSource; that of the part with the largest pass."""
        layouts = [part.layout for part in self.parts.values()]
        return max(layouts, key=lambda layout: layout.default_draft_capacity(1, 1, self.settings.num_drafts))

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """See DrafterSource."""
        return sum(part.kv_bytes_per_token(dtype) for part in self.parts.values())

    def check_target(self, target: ModelSource) -> None:
        """See DrafterSource."""
        for part in self.parts.values():
            part.check_target(target)

    def build(self, target: ServingTarget | None) -> ServingDrafter:
        """See DrafterSource."""
        built = {name: part.build(target) for name, part in self.parts.items()}
        chain = ChainDrafter({name: part.drafter for name, part in built.items()}, self.layout)
        # Only the last part may be a model (config/checks.py), so at most one observes.
        return ServingDrafter(chain, next((p.observer for p in built.values() if p.observer is not None), None))


def open_chain(settings: SpeculativeSettings, open_part: Callable[[SpeculativeSettings], DrafterSource]) -> ChainSource:
    """Open each part as if it stood alone; the model decides K and the position limit where they are open.

    Raises:
        SettingError, ModelLoadError: as the parts.
    """
    parts: dict[str, DrafterSource] = {}
    decided = settings
    for name in reversed(settings.drafters):
        model = settings.model if name in MODEL_DRAFTERS else None
        parts[name] = open_part(dataclasses.replace(decided, method=name, drafters=(), model=model))
        own = parts[name].settings
        decided = dataclasses.replace(
            settings,
            num_speculative_tokens=own.num_speculative_tokens,
            draft_max_model_len=own.draft_max_model_len,
        )
    return ChainSource(decided, dict(reversed(parts.items())))


def open_block_drafter(settings: SpeculativeSettings) -> BlockDrafterSource:
    """Find the checkpoint that the settings name, and decide what they leave open.

    Raises:
        SettingError: it is of another method, or was trained for fewer drafts or positions than asked for.
        ModelLoadError: it cannot be used.
    """
    if settings.model is None:
        raise SettingError(f"{_FLAG}: method {settings.method!r} needs a model, the folder of a drafter")
    checkpoint = open_drafter_checkpoint(Path(os.path.expanduser(settings.model)))
    config = checkpoint.config
    if config.algorithm.value != settings.method:
        raise SettingError(
            f"{_FLAG}: {settings.model} holds a {config.algorithm.value} drafter, not {settings.method!r}; "
            f'write "method": "{config.algorithm.value}"'
        )
    most = config.max_draft_tokens
    wanted = most if settings.num_speculative_tokens is None else settings.num_speculative_tokens
    if wanted > most:
        raise SettingError(
            f"{_FLAG}: num_speculative_tokens {wanted} is more than the {most} drafts that {settings.model} was "
            f"trained for (block_size {config.block_size}); the nearest that works is {most}"
        )
    limit = _position_limit(settings, config.max_position)
    for calibration in config.calibrations:
        if len(calibration.divisors) < most:
            raise ModelLoadError(
                f"{checkpoint.directory}: the calibration for temperature {calibration.temperature:g} has "
                f"{len(calibration.divisors)} positions, the drafter {most}"
            )
    decided = dataclasses.replace(settings, num_speculative_tokens=wanted, draft_max_model_len=limit)
    return BlockDrafterSource(decided, checkpoint)
