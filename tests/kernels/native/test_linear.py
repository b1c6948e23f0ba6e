"""Native products against float64 and their twin; the same bits on every path, with any threads, in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slipstream.kernels.native.groups import Groups, group_weight, multiply_groups, quantize_rows
from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers
from slipstream.kernels.native.linear import NativeLinear, pack

SHAPES = [(16, 32), (577, 96), (40, 576)]


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_groups(bits: int, num_outputs: int, num_inputs: int) -> Groups:
    generator = torch.Generator().manual_seed(bits)
    low, high, dtype = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    values = torch.randint(low, high, (num_outputs, num_inputs), generator=generator).to(dtype)
    scales = (torch.rand((num_outputs, num_inputs // 32), generator=generator) * 0.01 + 0.001).half()
    return Groups(bits, values, scales, (-8 * scales).half() if bits == 4 else None)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 11])
def test_products_are_exact_but_for_the_sum_of_groups(
    library: NativeLibrary, workers: Workers, path: InstructionPath, bits: int, shape: tuple[int, int], num_rows: int
) -> None:
    weight, x = random_groups(bits, *shape), random((num_rows, shape[1]), 3)
    bias = random((shape[0],), 4)
    found = NativeLinear(workers, path).multiply(x, pack(library, weight), bias)
    rows = quantize_rows(x)
    left = rows.values.unflatten(-1, (-1, 32)).double() * rows.scales.double()[..., None]
    exact = left.view(x.shape) @ weight.dense().double().T + bias.double()
    scale = left.view(x.shape).abs() @ weight.dense().double().abs().T
    assert ((found.double() - exact).abs() <= 2e-6 * scale + 1e-6).all()
    twin = multiply_groups(x, weight, bias)
    assert ((found - twin).abs() <= 4e-6 * scale + 1e-6).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_bits_do_not_follow_path_threads_or_batch(library: NativeLibrary, bits: int) -> None:
    weight, x = pack(library, random_groups(bits, 120, 192)), 10 * random((9, 192), 5)
    expected = NativeLinear(Workers(library, 1), InstructionPath.PLAIN).multiply(x, weight)
    for num_threads in (1, 2, 5):
        workers = Workers(library, num_threads)
        for path in InstructionPath:
            if path > library.best_path:
                continue
            linear = NativeLinear(workers, path)
            assert torch.equal(linear.multiply(x, weight), expected)
            for rows in ([4], [8, 0], [3, 1, 7], list(range(8, -1, -1)), [i * 5 % 9 for i in range(70)]):
                assert torch.equal(linear.multiply(x[rows], weight), expected[rows])


def test_the_largest_values_do_not_overflow(library: NativeLibrary, workers: Workers, path: InstructionPath) -> None:
    """Sums of 16 bits hold a whole group of four-bit weights, and of each half of eight-bit ones."""
    ones = torch.ones((16, 2), dtype=torch.float16)
    for sign in (1.0, -1.0):
        x = torch.full((5, 64), sign)
        four = Groups(4, torch.full((16, 64), 15, dtype=torch.uint8), ones, torch.zeros_like(ones))
        assert (
            NativeLinear(workers, path).multiply(x, pack(library, four)).allclose(torch.full((5, 16), sign * 15 * 64))
        )
        for value in (-128, 127):
            eight = Groups(8, torch.full((16, 64), value, dtype=torch.int8), ones, None)
            found = NativeLinear(workers, path).multiply(x, pack(library, eight))
            assert found.allclose(torch.full((5, 16), sign * value * 64))


def test_rows_are_quantised_as_the_twin_does(workers: Workers, path: InstructionPath) -> None:
    x = random((7, 128), 6) * torch.logspace(-6, 4, 7)[:, None]
    x[2, :32] = 0.0
    x[3, 40] = 0.5 * x[3].abs().max()  # ties
    x[4, 70], x[5, 3] = float("nan"), float("inf")
    x[6, :32] = 1e-35
    found, twin = NativeLinear(workers, path).quantize(x), quantize_rows(x)
    assert torch.equal(found.values, twin.values)
    assert torch.equal(found.sums, twin.sums)
    assert torch.equal(found.scales.nan_to_num(-1.0), twin.scales.nan_to_num(-1.0))
    assert found.scales[4, 2].isnan() and found.scales[5, 0].isnan() and int(found.scales.isnan().sum()) == 2


def test_what_is_no_number_shows_in_its_row_alone(
    library: NativeLibrary, workers: Workers, path: InstructionPath
) -> None:
    weight, x = pack(library, random_groups(4, 48, 64)), random((3, 64), 7)
    clean = NativeLinear(workers, path).multiply(x, weight)
    x[1, 5] = float("nan")
    found = NativeLinear(workers, path).multiply(x, weight)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


def test_groups_of_a_float_weight_are_near_it() -> None:
    weight = random((24, 96), 8)
    groups = group_weight(weight)
    assert (groups.dense() - weight).abs().max() < weight.abs().max() / 127
    assert torch.equal(group_weight(groups.dense()).dense(), groups.dense())
    with pytest.raises(ValueError, match="32 inputs do not fit 33"):
        group_weight(random((2, 33), 9))
