"""From a model's files to an executor."""

from __future__ import annotations

import os

import torch

from slipstream.attention.cache import kv_bytes_per_token
from slipstream.attention.invariant import InvariantAttention
from slipstream.attention.paged import PagedAttention
from slipstream.attention.protocol import AttentionBackend
from slipstream.config import STANDARD_REJECTION, ModelSettings
from slipstream.execution.device import resolve_device, resolve_dtype
from slipstream.execution.executor import TorchExecutor
from slipstream.kernels.fast import FastKernels
from slipstream.kernels.invariant import InvariantKernels
from slipstream.kernels.protocol import RowKernels
from slipstream.models.config import DecoderConfig
from slipstream.models.decoder import Decoder
from slipstream.models.fingerprint import WeightFingerprint
from slipstream.models.loading import ModelSource
from slipstream.scheduler.protocol import Matchers
from slipstream.speculation.serving import DrafterSource, ServingTarget


def model_kv_bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes of target KV per token."""
    return kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype)


def set_threads(num_threads: int | None) -> int:
    """Let PyTorch use this many CPU threads; gives the number.

    None takes what the environment says (OMP_NUM_THREADS), else every core that this process may use.
    """
    if num_threads is None and "OMP_NUM_THREADS" not in os.environ:
        num_threads = len(os.sched_getaffinity(0))
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return torch.get_num_threads()


def build_decoder(source: ModelSource, settings: ModelSettings) -> Decoder:
    """Load the weights in the dtype, on the device and with the arithmetic that the settings ask for."""
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    if device.type == "cpu":
        set_threads(settings.num_threads)
    kernels: RowKernels = FastKernels()
    attention: AttentionBackend = PagedAttention()
    if settings.batch_invariant:
        kernels, attention = InvariantKernels(), InvariantAttention()
    fingerprint = WeightFingerprint()
    weights = source.load_weights(dtype, device, fingerprint)
    return Decoder(
        source.config,
        weights,
        kernels=kernels,
        attention=attention,
        num_positions=settings.max_model_len,
        source_fingerprint=fingerprint.value(),
    )


def build_executor(
    source: ModelSource,
    settings: ModelSettings,
    *,
    num_kv_blocks: int,
    block_size: int,
    drafter: DrafterSource | None = None,
    matchers: Matchers | None = None,
) -> TorchExecutor:
    """A TorchExecutor with its weights loaded and its KV pool allocated; `matchers` are for constrained requests.

    Raises:
        ModelLoadError: a model that cannot be loaded, or a drafter that was made for another.
    """
    return executor_around(build_decoder(source, settings), num_kv_blocks, block_size, drafter, matchers)


def executor_around(
    decoder: Decoder,
    num_kv_blocks: int,
    block_size: int,
    drafter: DrafterSource | None,
    matchers: Matchers | None = None,
) -> TorchExecutor:
    """An executor with a fresh KV pool, and the drafter built for it. Raises ModelLoadError."""
    if drafter is None:
        return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size, matchers=matchers)
    built = drafter.build(ServingTarget(decoder, num_kv_blocks, block_size))
    return TorchExecutor(
        decoder,
        num_kv_blocks=num_kv_blocks,
        block_size=block_size,
        drafter=built.drafter,
        observer=built.observer,
        needs_distributions=drafter.settings.rejection_sample_method == STANDARD_REJECTION,
        matchers=matchers,
    )
