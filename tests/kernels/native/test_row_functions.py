"""Norm, activation, rotation and quantisation of single rows: against float64, and the same bits on both paths."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import pytest
import torch
from kernels.native.compiled import SOURCES, compiled
from torch import Tensor

from slipstream.kernels.native.groups import QuantizedRows, quantize_rows
from slipstream.kernels.native.library import InstructionPath, NativeLibrary

PROBE = Path(__file__).parent / "probes/row_functions.cpp"
HOSTILE = (0.0, -0.0, 1e-45, -1e-40, 1e-30, 1e18, -1e18, 3e38, math.inf, -math.inf, math.nan)
EPS = 1e-5


class RowFunctions:
    """Calls the probe. Every result lies between guards that must stay as they are."""

    def __init__(self, probe: ctypes.CDLL, path: InstructionPath) -> None:
        self._probe = probe
        self._is_avx2 = int(path != InstructionPath.PLAIN)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float = EPS, *, in_place: bool = False) -> Tensor:
        guarded = _guarded(x if in_place else torch.zeros_like(x))
        source = guarded[8:] if in_place else x
        self._call("rms_norm", source, weight, len(x), ctypes.c_float(eps), guarded[8:])
        return _inside(guarded)

    def silu_mul(self, gate_up: Tensor, *, in_place: bool = False) -> Tensor:
        size = len(gate_up) // 2
        if in_place:
            guarded = _guarded(gate_up)
            self._call("silu_mul", guarded[8:], size, guarded[8:])
            found = _inside(guarded)
            assert torch.equal(found[size:].nan_to_num(), gate_up[size:].nan_to_num())
            return found[:size]
        guarded = _guarded(torch.zeros(size))
        self._call("silu_mul", gate_up, size, guarded[8:])
        return _inside(guarded)

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        guarded = _guarded(x)
        self._call("rotate", guarded[8:], cosine, sine, len(x))
        return _inside(guarded)

    def quantize(self, x: Tensor) -> QuantizedRows:
        groups = len(x) // 32
        values = torch.full((1, len(x) + 32), 77, dtype=torch.int8)
        scales, sums = torch.full((1, groups + 8), 12345.0), torch.full((1, groups + 8), 77, dtype=torch.int32)
        self._call("quantize", x, len(x), values, scales, sums)
        assert (values[:, len(x) :] == 77).all()
        assert (scales[:, groups:] == 12345.0).all() and (sums[:, groups:] == 77).all()
        return QuantizedRows(values[:, : len(x)], scales[:, :groups], sums[:, :groups])

    def _call(self, name: str, *arguments: object) -> None:
        pointers = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments]
        getattr(self._probe, name)(self._is_avx2, *pointers)


def _guarded(x: Tensor) -> Tensor:
    edge = torch.full((8,), 12345.0)
    return torch.cat([edge, x, edge])


def _inside(guarded: Tensor) -> Tensor:
    assert (guarded[:8] == 12345.0).all() and (guarded[-8:] == 12345.0).all()
    return guarded[8:-8]


def random(size: int, seed: int = 1) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Every NaN counts as the same."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(1.0, math.inf), b.nan_to_num(1.0, math.inf))


@pytest.fixture(scope="module")
def probe(library: NativeLibrary, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    names = ["plain"] if library.best_path == InstructionPath.PLAIN else ["plain", "avx2"]
    sources = [PROBE, *(SOURCES / f"row_functions_{name}.cpp" for name in names)]
    return compiled(tmp_path_factory.mktemp("row_functions"), sources)


@pytest.fixture
def functions(probe: ctypes.CDLL, path: InstructionPath) -> RowFunctions:
    return RowFunctions(probe, path)


@pytest.fixture
def plain(probe: ctypes.CDLL) -> RowFunctions:
    return RowFunctions(probe, InstructionPath.PLAIN)


@pytest.mark.parametrize("size", [8, 32, 64, 96, 576, 4096])
@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e6])
def test_rms_norm(functions: RowFunctions, plain: RowFunctions, size: int, spread: float) -> None:
    x, weight = random(size) * spread, random(size, 2)
    exact = x.double() / (x.double().square().mean() + EPS).sqrt()
    found = functions.rms_norm(x, weight)
    assert ((found.double() - exact * weight.double()).abs() <= 1e-6 * exact.abs() * weight.double().abs()).all()
    assert torch.equal(found, plain.rms_norm(x, weight))
    assert torch.equal(functions.rms_norm(x, weight, in_place=True), found)
    assert ((functions.rms_norm(x, None).double() - exact).abs() <= 1e-6 * exact.abs()).all()


def test_rms_norm_of_little_and_of_nothing(functions: RowFunctions) -> None:
    assert (functions.rms_norm(torch.zeros(64), None) == 0.0).all()
    # Beside eps the squares of denormal numbers are nothing.
    tiny = random(64) * 1e-40
    assert (functions.rms_norm(tiny, None).double() - tiny.double() / math.sqrt(EPS)).abs().max() < 1e-43


@pytest.mark.parametrize("place", [0, 7, 8, 63])
def test_rms_norm_shows_what_is_no_number(functions: RowFunctions, plain: RowFunctions, place: int) -> None:
    for value in HOSTILE:
        x = random(64)
        x[place] = value
        found = functions.rms_norm(x, None)
        assert same_bits(found, plain.rms_norm(x, None))
        assert bool(found[place].isnan()) == (not math.isfinite(value))


@pytest.mark.parametrize("in_place", [False, True])
def test_silu_mul_everywhere(functions: RowFunctions, plain: RowFunctions, in_place: bool) -> None:
    """A sweep over all gates whose result is not below the smallest normal number: also of exp itself."""
    gate = torch.linspace(-85.0, 95.0, 80_000)
    gate_up = torch.cat([gate, random(80_000, 3)])
    exact = gate.double() / (1.0 + (-gate.double()).exp()) * gate_up[80_000:].double()
    found = functions.silu_mul(gate_up, in_place=in_place)
    assert ((found.double() - exact).abs() <= 4e-7 * exact.abs()).all()
    assert torch.equal(found, plain.silu_mul(gate_up))


def test_silu_mul_at_the_ends(functions: RowFunctions, plain: RowFunctions) -> None:
    gate = torch.tensor([*HOSTILE, -87.0, -88.0, -89.0, -1e4, 1e4], dtype=torch.float32)
    found = functions.silu_mul(torch.cat([gate, torch.ones(16)]))
    assert same_bits(found, plain.silu_mul(torch.cat([gate, torch.ones(16)])))
    exact = gate.double() / (1.0 + (-gate.double()).exp())
    finite = gate.isfinite()
    # Below -88 the factor stays at e^-88.
    bound = 4e-7 * exact.abs() + 1e-38 * gate.double().abs() + 2.0**-149
    assert ((found.double() - exact).abs() <= bound)[finite].all()
    assert found[gate.isnan()].isnan().all()
    assert found[8] == math.inf


@pytest.mark.parametrize("head_dim", [16, 32, 80, 128, 256])
def test_rotate(functions: RowFunctions, plain: RowFunctions, head_dim: int) -> None:
    x, angles = random(head_dim), random(head_dim // 2, 2).double() * 100
    cosine = angles.cos().float().repeat(2)
    sine = torch.cat([-angles.sin(), angles.sin()]).float()
    turned = torch.view_as_complex(torch.stack(x.double().chunk(2), -1)) * torch.polar(torch.ones_like(angles), angles)
    exact = torch.cat([turned.real, turned.imag])
    found = functions.rotate(x, cosine, sine)
    assert (found.double() - exact).abs().max() < 1e-6
    assert torch.equal(found, plain.rotate(x, cosine, sine))


@pytest.mark.parametrize("size", [32, 64, 576])
def test_quantise(functions: RowFunctions, size: int) -> None:
    """After a norm and after an activation it is what the twin gives for the same floats; guards stay whole."""
    x = functions.rms_norm(random(size), random(size, 2))
    for row in (x, functions.silu_mul(torch.cat([x, 5 * x])), torch.zeros(size), x * 1e-39, x * 1e37):
        found, twin = functions.quantize(row), quantize_rows(row[None])
        assert torch.equal(found.values, twin.values) and torch.equal(found.sums, twin.sums)
        assert torch.equal(found.scales, twin.scales)


@pytest.mark.parametrize("value", HOSTILE, ids=str)
def test_quantise_hostile_values(functions: RowFunctions, value: float) -> None:
    """Anywhere in a group: alone, among zeros, and filling it."""
    for place in (0, 9, 31, 32, 95):
        for filled in (random(96), torch.zeros(96)):
            x = filled.clone()
            x[place] = value
            found, twin = functions.quantize(x), quantize_rows(x[None])
            assert torch.equal(found.values, twin.values) and torch.equal(found.sums, twin.sums)
            assert same_bits(found.scales, twin.scales)
            assert int(found.scales.isnan().sum()) == (not math.isfinite(value))
    full = functions.quantize(torch.full((32,), value))
    dense = full.values.float() * full.scales
    is_kept = math.isfinite(value) and abs(value) > 1e-30
    expected = torch.full((1, 32), value) if is_kept else torch.zeros((1, 32))
    assert dense.isnan().all() if not math.isfinite(value) else dense.allclose(expected)
