import math

import pytest
import torch
from sampling_reference import chi_square_bound, reference_gumbel

from slipstream.sampling.noise import (
    exponential,
    gumbel,
    hash_token,
    hash_tokens,
    key_tensor,
    noise_key,
    survival_float32_scaled,
    survival_float64,
    token_constants,
)

KEYS = [noise_key(seed, 0, position) for seed in (0, 1, 42) for position in range(20)]


def test_tensors_and_scalars_hash_alike():
    hashes = hash_tokens(token_constants(1000, "cpu"), key_tensor(KEYS, "cpu")[:, None])
    assert hashes.tolist() == [[hash_token(key, token_id) for token_id in range(1000)] for key in KEYS]


def test_noise_is_the_definition_written_out():
    for key in KEYS[:5]:
        assert [gumbel(key, token_id) for token_id in range(200)] == [reference_gumbel(key, i) for i in range(200)]


def test_extreme_hashes_give_uniforms_strictly_inside_0_1():
    extremes = [-(2**63), -(2**63) + 4095, -1, 0, 2**63 - 1]
    w = survival_float64(torch.tensor(extremes))
    assert w.tolist() == [2.0**-53, 2.0**-53, 0.5 - 2.0**-53, 0.5 + 2.0**-53, 1 - 2.0**-53]
    for hash_, survival in zip(extremes, w.tolist(), strict=True):
        assert exponential(hash_) == -math.log1p(-survival)
        assert 0 < exponential(hash_) < 37


def test_cheap_uniforms_are_as_close_as_the_draw_assumes():
    hashes = hash_tokens(token_constants(20_000, "cpu"), key_tensor(KEYS[:5], "cpu")[:, None])
    cheap = survival_float32_scaled(hashes).double() / 2.0**64 + 0.5
    assert (cheap - survival_float64(hashes)).abs().max() < 2.0**-24


@pytest.mark.parametrize("seed", [0, -1, 7, 2**63, 2**64, -(2**64), 2**64 + 7, 10**40, -(10**40)])
def test_any_integer_is_a_seed(seed):
    assert 0 <= noise_key(seed, 0, 0) < 2**64


def test_keys_differ_by_seed_choice_and_position():
    seeds = [0, 1, -1, 2**32, 2**64 - 1, 2**64, 2**64 + 1, -(2**64), 2**128, 10**40]
    keys = {noise_key(seed, choice, position) for seed in seeds for choice in range(20) for position in range(200)}
    assert len(keys) == len(seeds) * 20 * 200


@pytest.mark.parametrize("vary", ["token", "position", "seed", "choice"])
def test_uniform_along_every_counter(vary):
    """Single values and neighbouring pairs are uniform, whichever counter runs."""
    count = 1 << 16
    if vary == "token":
        hashes = hash_tokens(token_constants(count, "cpu"), key_tensor([noise_key(3, 0, 5)], "cpu"))
    else:
        arguments = {"position": lambda i: (3, 0, i), "seed": lambda i: (i, 0, 5), "choice": lambda i: (3, i, 5)}
        keys = key_tensor([noise_key(*arguments[vary](i)) for i in range(count)], "cpu")
        hashes = hash_tokens(token_constants(10, "cpu")[9], keys)
    w = survival_float64(hashes)
    for bins, cells in ((256, (w * 256).long()), (1024, (w[:-1] * 32).long() * 32 + (w[1:] * 32).long())):
        expected = cells.shape[0] / bins
        chi_square = float(((torch.bincount(cells, minlength=bins) - expected) ** 2).sum() / expected)
        assert chi_square < chi_square_bound(bins - 1)


def test_rows_are_uncorrelated_bit_by_bit():
    """Of two neighbouring positions' hashes, every used bit pair agrees half of the time."""
    constants = token_constants(1 << 14, "cpu")
    first, second = (hash_tokens(constants, key_tensor([noise_key(1, 0, p)], "cpu")) for p in (10, 11))
    bits = torch.arange(12, 64)
    a = ((first[:, None] >> bits) & 1).double() * 2 - 1
    b = ((second[:, None] >> bits) & 1).double() * 2 - 1
    correlations = a.T @ b / (1 << 14)
    assert correlations.abs().max() < 5.5 / math.sqrt(1 << 14)
