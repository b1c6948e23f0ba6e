"""The sampler that goes with a decoder."""

from __future__ import annotations

from slipstream.kernels.native.sampling import NativeRowSampler
from slipstream.models.native_decoder import NativeDecoder
from slipstream.models.protocol import TransformerDecoder
from slipstream.sampling.sampler import Sampler


def make_sampler(decoder: TransformerDecoder) -> Sampler:
    """Of the decoder's vocabulary, in the native library where the decoder runs there."""
    vocab_size, row_sampler = decoder.config.vocab_size, None
    if isinstance(decoder, NativeDecoder):
        row_sampler = NativeRowSampler(decoder.workers, vocab_size, decoder.path)
    return Sampler(vocab_size, decoder.device, row_sampler)
