"""The AVX-512 VNNI product on processors without it: its source compiled against SIMDe, bit for bit the plain path."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import pytest
import torch
from kernels.native.compiled import SOURCES, compiled
from torch import Tensor

from slipstream.kernels.native.groups import Groups, QuantizedRows, quantize_rows
from slipstream.kernels.native.library import NativeLibrary
from slipstream.kernels.native.linear import PackedWeight, pack

PROBES = Path(__file__).parent / "probes"
SIMDE = Path("/usr/include/simde")
SHAPES = [(1, 32), (15, 64), (16, 32), (17, 96), (49, 576), (577, 160)]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not SIMDE.exists():
        pytest.skip("no SIMDe headers (Debian: libsimde-dev)")
    folder = tmp_path_factory.mktemp("vnni")
    # Without the line that lets the compiler itself use AVX-512.
    lines = (SOURCES / "linear_avx512_vnni.cpp").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("#pragma GCC target")]
    assert len(kept) == len(lines) - 1
    portable = folder / "linear_avx512_vnni.cpp"
    portable.write_text("\n".join(kept))
    sources = [portable, SOURCES / "linear_plain.cpp", PROBES / "vnni.cpp"]
    return compiled(folder, sources, f"-I{PROBES / 'simde'}")


def multiply(
    probe: ctypes.CDLL,
    is_vnni: bool,
    weight: PackedWeight,
    rows: QuantizedRows,
    bias: Tensor | None = None,
    start: Tensor | None = None,
) -> Tensor:
    """Rows times a weight, added to `start` where there is one. Three more floats a row must stay as they are."""
    num_rows, num_outputs = len(rows.values), weight.shape[0]
    output = torch.full((num_rows + 1, num_outputs + 3), 12345.0)
    if start is not None:
        output[:-1, :num_outputs] = start
    pointer = ctypes.c_void_p
    probe.multiply(
        int(is_vnni),
        pointer(weight.records.data_ptr()),
        weight.bits,
        *weight.shape,
        *(pointer(part.data_ptr()) for part in (rows.values, rows.scales, rows.sums)),
        num_rows,
        pointer(None if bias is None else bias.data_ptr()),
        int(start is not None),
        pointer(output.data_ptr()),
        ctypes.c_long(num_outputs + 3),
    )
    assert (output[:, num_outputs:] == 12345.0).all() and (output[-1] == 12345.0).all()
    return output[:-1, :num_outputs]


def random_groups(bits: int, shape: tuple[int, int], generator: torch.Generator) -> Groups:
    low, high, dtype = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    values = torch.randint(low, high, shape, generator=generator).to(dtype)
    scales = torch.randn((shape[0], shape[1] // 32), generator=generator).half()
    minima = torch.randn(scales.shape, generator=generator).half() if bits == 4 else None
    return Groups(bits, values, scales, minima)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 4, 5, 7, 13])
def test_same_bits(
    library: NativeLibrary, probe: ctypes.CDLL, bits: int, shape: tuple[int, int], num_rows: int
) -> None:
    generator = torch.Generator().manual_seed(100 * bits + num_rows)
    weight = pack(library, random_groups(bits, shape, generator))
    rows = quantize_rows(torch.randn((num_rows, shape[1]), generator=generator))
    bias = torch.randn(shape[0], generator=generator)
    start = torch.randn((num_rows, shape[0]), generator=generator)
    for extra in ((None, None), (bias, None), (None, start), (bias, start)):
        expected = multiply(probe, False, weight, rows, *extra)
        assert torch.equal(multiply(probe, True, weight, rows, *extra), expected)
        assert (expected != 0.0).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("value", [0, 15, -128, 127])
def test_the_largest_integers(library: NativeLibrary, probe: ctypes.CDLL, sign: int, value: int) -> None:
    """Signed rows times unsigned weights, at both ends: no saturation, no sign lost."""
    bits, dtype = (4, torch.uint8) if value in (0, 15) else (8, torch.int8)
    scales = torch.ones((20, 2), dtype=torch.float16)
    minima = torch.full_like(scales, -7.0) if bits == 4 else None
    weight = pack(library, Groups(bits, torch.full((20, 64), value, dtype=dtype), scales, minima))
    rows = quantize_rows(torch.full((5, 64), 127.0 * sign))
    found = multiply(probe, True, weight, rows)
    assert torch.equal(found, multiply(probe, False, weight, rows))
    assert (found == 64 * 127 * sign * (value - 7 * (bits == 4))).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_scales_at_the_ends_of_half_precision(library: NativeLibrary, probe: ctypes.CDLL, bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    groups = random_groups(bits, (40, 128), generator)
    ends = torch.tensor([0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504.0, -65504.0, 1.0], dtype=torch.float16)
    picks = torch.randint(0, len(ends), groups.scales.shape, generator=generator)
    minima = None if groups.minima is None else ends[picks.flip(0)]
    weight = pack(library, Groups(bits, groups.values, ends[picks], minima))
    x = torch.randn((6, 128), generator=generator)
    x[1], x[2], x[3] = 0.0, x[2] * 1e-36, x[3] * 1e30
    x[4, 5], x[5, 70] = math.nan, math.inf
    rows = quantize_rows(x)
    expected, found = multiply(probe, False, weight, rows), multiply(probe, True, weight, rows)
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(found.isnan(), expected.isnan())
    assert found[4].isnan().all() and found[5].isnan().all() and (found[1] == 0.0).all()
