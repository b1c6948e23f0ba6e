"""Rotary frequencies by hand, and the refusal of an unknown kind."""

from __future__ import annotations

import math

import pytest
import torch

from slipstream.models.config import RopeScaling
from slipstream.models.rope import RotaryTable, inverse_frequencies, rotate_


def test_default_and_linear_frequencies() -> None:
    plain = inverse_frequencies(8, 10000.0, RopeScaling())
    assert plain.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert inverse_frequencies(8, 10000.0, RopeScaling(kind="linear", factor=4.0)).tolist() == pytest.approx(
        [0.25, 0.025, 0.0025, 0.00025]
    )


def test_llama3_keeps_short_and_slows_long_wavelengths() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, original_max_position=64)
    plain = inverse_frequencies(16, 10000.0, RopeScaling())
    scaled = inverse_frequencies(16, 10000.0, scaling)
    wavelengths = 2 * math.pi / plain
    assert any(wavelengths < 16) and any(wavelengths > 64) and any((wavelengths > 16) & (wavelengths < 64))
    for wavelength, before, after in zip(wavelengths.tolist(), plain.tolist(), scaled.tolist(), strict=True):
        if wavelength < 64 / 4:
            assert after == pytest.approx(before)
        elif wavelength > 64:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 < after < before


def test_rotation_turns_pairs_by_the_position_angle() -> None:
    table = RotaryTable(4, 100.0, RopeScaling(), 32, dtype=torch.float32, device=torch.device("cpu"))
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    rotate_(x, *table.at(torch.tensor([5])))
    first, second = (
        complex(1, 3) * complex(math.cos(5), math.sin(5)),
        complex(2, 4) * complex(math.cos(0.5), math.sin(0.5)),
    )
    assert x.flatten().tolist() == pytest.approx([first.real, second.real, first.imag, second.imag], rel=1e-5)


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="yarn"):
        inverse_frequencies(8, 10000.0, RopeScaling(kind="yarn"))
