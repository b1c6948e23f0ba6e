"""Quantised blocks of a GGUF as groups: the same numbers as the dequantised tensors, and the same fingerprint."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from tiny_gguf import write_tiny_gguf

from slipstream.kernels.native.groups import Groups
from slipstream.models.fingerprint import WeightFingerprint
from slipstream.models.loading import open_model

GROUPED = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "F16"])
def test_groups_hold_the_dequantised_numbers(tmp_path: Path, kind: str, architecture: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", architecture, quantization=gguf.GGMLQuantizationType[kind])
    source = open_model(str(tmp_path / "tiny.gguf"), progress=False)
    stated, found = WeightFingerprint(), WeightFingerprint()
    dense = source.load_weights(torch.float32, "cpu", stated)
    stored = source.load_stored(found)
    assert dense.keys() == stored.keys()
    for name, values in dense.items():
        weight = stored[name]
        if isinstance(weight, Groups):
            assert weight.bits == GROUPED[kind]
            weight = weight.dense()
        assert torch.equal(weight, values), name
    assert found.value() == stated.value() == source.fingerprint()
    matrices = [weight for weight in stored.values() if len(weight.shape) == 2]
    assert all(isinstance(weight, Groups) == (kind in GROUPED) for weight in matrices)


def test_elements_are_those_of_the_dense_weight() -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(0, 16, (6, 64), generator=generator, dtype=torch.uint8)
    scales, minima = (torch.randn(6, 2, generator=generator).half() for _ in range(2))
    for weight in (Groups(4, values, scales, minima), Groups(8, values.to(torch.int8), scales, None)):
        places = torch.tensor([0, 5, 63, 64, 200, 383])
        assert torch.equal(weight.elements(places), weight.dense().flatten()[places])
