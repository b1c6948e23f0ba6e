"""From a model's files to an executor."""

from __future__ import annotations

import os

import torch

from slipstream.attention.cache import kv_bytes_per_token
from slipstream.attention.invariant import InvariantAttention
from slipstream.attention.paged import PagedAttention
from slipstream.attention.protocol import AttentionBackend
from slipstream.config import STANDARD_REJECTION, ModelSettings
from slipstream.execution.arithmetic import resolve_arithmetic
from slipstream.execution.executor import TorchExecutor
from slipstream.execution.host_memory import give_back_freed_memory
from slipstream.kernels.fast import FastKernels
from slipstream.kernels.invariant import InvariantKernels
from slipstream.kernels.native.library import Workers
from slipstream.kernels.protocol import RowKernels
from slipstream.models.config import DecoderConfig
from slipstream.models.decoder import Decoder
from slipstream.models.fingerprint import WeightFingerprint
from slipstream.models.loading import ModelSource
from slipstream.models.native_decoder import NativeDecoder
from slipstream.models.protocol import TransformerDecoder
from slipstream.scheduler.protocol import Matchers
from slipstream.speculation.serving import DrafterSource, ServingTarget


def model_kv_bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes of target KV per token."""
    return kv_bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim, dtype)


def thread_count(num_threads: int | None) -> int:
    """CPU threads that a setting comes to.

    None takes what the environment says (OMP_NUM_THREADS), else every core that this process may use.
    """
    if num_threads is not None:
        return num_threads
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(stated) if stated.isdecimal() and int(stated) else len(os.sched_getaffinity(0))


def set_threads(num_threads: int | None) -> int:
    """Let PyTorch use as many CPU threads as `thread_count` says; gives the number."""
    count = thread_count(num_threads)
    torch.set_num_threads(count)
    return count


def build_decoder(source: ModelSource, settings: ModelSettings) -> TransformerDecoder:
    """Load the weights in the form, on the device and with the arithmetic that the settings ask for."""
    arithmetic = resolve_arithmetic(settings, source.config)
    fingerprint = WeightFingerprint()
    if arithmetic.library is not None:
        # What is left to PyTorch is small, and threads of its own would look for work on the cores of the library's.
        torch.set_num_threads(1)
        weights = source.load_stored(fingerprint)
        return NativeDecoder(
            source.config,
            weights,
            workers=Workers(arithmetic.library, thread_count(settings.num_threads)),
            cache_dtype=arithmetic.cache_dtype,
            num_positions=settings.max_model_len,
            source_fingerprint=fingerprint.value(),
        )
    if arithmetic.device.type == "cpu":
        set_threads(settings.num_threads)
    kernels: RowKernels = FastKernels()
    attention: AttentionBackend = PagedAttention()
    if settings.batch_invariant:
        kernels, attention = InvariantKernels(), InvariantAttention()
    dense = source.load_weights(arithmetic.dtype, arithmetic.device, fingerprint)
    return Decoder(
        source.config,
        dense,
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
    executor = executor_around(build_decoder(source, settings), num_kv_blocks, block_size, drafter, matchers)
    give_back_freed_memory()
    return executor


def executor_around(
    decoder: TransformerDecoder,
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
