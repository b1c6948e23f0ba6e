"""Counter-based random numbers: a hash of (seed, choice index, output position, token id), and of nothing else.

The hash is the output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
OOPSLA 2014), without its last xor-shift, which reaches only bits that a uniform number does not use. Tensors hold
int64, whose wrapping products and masked shifts are those of unsigned numbers on every device.
"""

from __future__ import annotations

import math
from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def _finalise(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FACTOR_1) & _MASK
    return ((value ^ (value >> 27)) * _FACTOR_2) & _MASK


def _absorb(state: int, word: int) -> int:
    """Mix one 64-bit word into a 64-bit state."""
    value = _finalise(((state ^ word) + _GOLDEN) & _MASK)
    return value ^ (value >> 31)


@lru_cache(maxsize=4096)
def _stream_key(seed: int, choice_index: int) -> int:
    num_words = seed.bit_length() // 64 + 1  # room for the sign bit too
    state = num_words
    for shift in range(0, 64 * num_words, 64):
        state = _absorb(state, (seed >> shift) & _MASK)
    return _absorb(state, choice_index & _MASK)


def noise_key(seed: int, choice_index: int, output_position: int) -> int:
    """The 64-bit key of one output position's noise.

    Any integer is a seed: its two's complement is cut into as many 64-bit words as it and its sign need, which are
    mixed in one after the other, lowest first.
    """
    return _absorb(_stream_key(seed, choice_index), output_position & _MASK)


class NoiseStream(IntEnum):
    """What noise beside the target's own is for."""

    DRAFT = 1
    ACCEPTANCE = 2
    RESIDUAL = 3


def stream_key(key: int, stream: NoiseStream, column: int) -> int:
    """The key of another stream of noise at the output position that `key` (of `noise_key`) stands for.

    `column` is the draft's place in its block, from 0. A position that is drafted again in a later round always lies in
    a smaller column, since every round commits a token: so it gets fresh noise, and none but (seed, choice, position,
    column) is remembered for it.
    """
    return _absorb(_absorb(key, stream), column)


def token_constants(vocab_size: int, device: torch.device | str) -> Tensor:
    """One well-mixed 64-bit constant per token id, int64 [V]; computed once per vocabulary."""
    state = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _signed(_GOLDEN)
    return _hash_in_place(state)


def hash_tokens(constants: Tensor, keys: Tensor) -> Tensor:
    """Hashes of tokens (by their constants) under keys (int64); shapes broadcast. A new int64 tensor."""
    return _hash_in_place(constants ^ keys)


def _hash_in_place(state: Tensor) -> Tensor:
    high = state >> 30
    high &= (1 << 34) - 1  # the shift of an int64 brings in sign bits
    state ^= high
    state *= _signed(_FACTOR_1)
    torch.bitwise_right_shift(state, 27, out=high)
    high &= (1 << 37) - 1
    state ^= high
    state *= _signed(_FACTOR_2)
    return state


def key_tensor(keys: list[int], device: torch.device | str) -> Tensor:
    """Keys as int64 [N]."""
    return torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=device)


# A hash h (read as int64) stands for the uniform number u = 1 - w with
#     w = (2 k + 1) / 2**53,  k = (h >> 12) + 2**51  in [0, 2**52),
# so that u and w are both exact in float64 and strictly between 0 and 1.
_SCALE = 2.0**-52
_CENTRE = 0.5 + 2.0**-53


def survival_float64(hashes: Tensor) -> Tensor:
    """w = 1 - u of each hash, exact, float64."""
    return (hashes >> 12).to(torch.float64).mul_(_SCALE).add_(_CENTRE)


def survival_float32_scaled(hashes: Tensor) -> Tensor:
    """2**64 (w - 0.5) of each hash as float32: cheap, and off by at most 2**39, so w by at most 2**-25."""
    return hashes.to(torch.float32)


def exponential(hash_: int) -> float:
    """-log(u) of one hash (int64 value): exponentially distributed with mean 1, in float64, finite and above 0."""
    return -math.log1p(-((hash_ >> 12) * _SCALE + _CENTRE))


def uniform(key: int) -> float:
    """One number of a key whose stream needs no more: uniform in (0, 1), a multiple of 2**-53."""
    return 0.5 - 2.0**-53 - (hash_token(key, 0) >> 12) * _SCALE


def hash_token(key: int, token_id: int) -> int:
    """The int64 that `hash_tokens` gives for one token."""
    constant = _finalise(((token_id + 1) * _GOLDEN) & _MASK)
    return _signed(_finalise(constant ^ key))


def gumbel(key: int, token_id: int) -> float:
    """The noise added to one token's logit: -log(-log(u))."""
    return -math.log(exponential(hash_token(key, token_id)))
