"""A whole pass in the native library against its plain PyTorch twin, and the same bits in any batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels.native.groups import Groups, group_weight, quantize_rows
from slipstream.kernels.native.layers import LayerShape, NativeLayer, NativeLayers, NativeStep
from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers
from slipstream.kernels.native.linear import pack
from slipstream.models.config import RopeScaling
from slipstream.models.rope import RotaryTable

BLOCK_SIZE = 8
HIDDEN = 64
INTERMEDIATE = 96
EPS = 1e-5
VARIANTS = ("plain", "bias", "qk_norm", "four_bits")


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Model:
    """Weights as groups, which are what both sides compute with; the kernels' shapes are fused (layers.py)."""

    shape: LayerShape
    layers: list[dict[str, Groups]]
    norms: list[dict[str, Tensor | None]]

    @property
    def qkv_heads(self) -> int:
        return self.shape.num_heads + 2 * self.shape.num_kv_heads

    def native(self, workers: Workers, path: InstructionPath) -> NativeLayers:
        layers = []
        for groups, norms in zip(self.layers, self.norms, strict=True):
            packed = {name: pack(workers.library, weight) for name, weight in groups.items()}
            layers.append(NativeLayer(**packed, **norms))  # type: ignore[arg-type]
        return NativeLayers(workers, self.shape, layers, path)


def make_model(variant: str, *, num_layers: int = 2, heads: tuple[int, int] = (6, 2), head_dim: int = 16) -> Model:
    shape = LayerShape(HIDDEN, INTERMEDIATE, heads[0], heads[1], head_dim, EPS)
    qkv = (heads[0] + 2 * heads[1]) * head_dim
    sizes = {
        "qkv": (qkv, HIDDEN),
        "output": (HIDDEN, heads[0] * head_dim),
        "gate_up": (2 * INTERMEDIATE, HIDDEN),
        "down": (HIDDEN, INTERMEDIATE),
    }
    layers, norms = [], []
    for layer in range(num_layers):
        seeds = iter(range(100 * layer, 100 * layer + 50))
        weights = {name: random(size, next(seeds)) / size[1] ** 0.5 for name, size in sizes.items()}
        make = _four_bits if variant == "four_bits" else group_weight
        layers.append({name: make(weight) for name, weight in weights.items()})
        norms.append(
            {
                "attention_norm": 1 + 0.2 * random((HIDDEN,), next(seeds)),
                "mlp_norm": 1 + 0.2 * random((HIDDEN,), next(seeds)),
                "qkv_bias": random((qkv,), next(seeds)) if variant == "bias" else None,
                "qk_norm": 1 + 0.2 * random((sum(heads), head_dim), next(seeds)) if variant == "qk_norm" else None,
            }
        )
    return Model(shape, layers, norms)


def _four_bits(weight: Tensor) -> Groups:
    parts = weight.unflatten(-1, (-1, 32))
    minima = parts.amin(-1).half()
    scales = ((parts.amax(-1) - parts.amin(-1)) / 15).half()
    values = ((parts - minima.float()[..., None]) / scales.float()[..., None]).round().clamp(0, 15)
    return Groups(4, values.to(torch.uint8).flatten(1), scales, minima)


@dataclass(frozen=True)
class Span:
    """Rows of one request in a step."""

    first: int
    count: int
    blocks: tuple[int, ...]
    first_key: int = 0

    @property
    def slots(self) -> list[int]:
        positions = range(self.first, self.first + self.count)
        return [self.blocks[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in positions]


ROTARY = {
    head_dim: RotaryTable(head_dim, 1e4, RopeScaling(), 256, dtype=torch.float32, device=torch.device("cpu"))
    for head_dim in (16, 32)
}


def make_step(spans: Sequence[Span], head_dim: int, *, is_causal: bool = True) -> NativeStep:
    numbers, block_ids, row = [], [], 0
    for span in spans:
        numbers.append((row, span.count, span.first, span.first_key, len(block_ids)))
        block_ids += span.blocks
        row += span.count
    positions = torch.tensor([p for span in spans for p in range(span.first, span.first + span.count)]).long()
    return NativeStep(
        torch.tensor([slot for span in spans for slot in span.slots]).long(),
        *ROTARY[head_dim].at(positions),
        torch.tensor(numbers, dtype=torch.int32).view(-1, 5),
        torch.tensor(block_ids, dtype=torch.int32),
        BLOCK_SIZE,
        is_causal,
    )


def make_caches(model: Model, num_blocks: int, dtype: torch.dtype) -> list[Tensor]:
    shape = (num_blocks, BLOCK_SIZE, 2, model.shape.num_kv_heads, model.shape.head_dim)
    return [random(shape, 900 + layer).to(dtype) for layer in range(len(model.layers))]


def twin_pass(model: Model, x: Tensor, spans: Sequence[Span], caches: Sequence[Tensor], *, is_causal: bool) -> Tensor:
    """What the library computes, in float64 but for what it quantises; caches are written."""
    shape = model.shape
    x = x.double()
    step = make_step(spans, shape.head_dim, is_causal=is_causal)
    cosine, sine = step.cosine.double(), step.sine.double()
    rotated, group = shape.num_heads + shape.num_kv_heads, shape.num_heads // shape.num_kv_heads
    for groups, norms, cache in zip(model.layers, model.norms, caches, strict=True):
        qkv = _product(_norm(x, norms["attention_norm"]), groups["qkv"])
        if norms["qkv_bias"] is not None:
            qkv = qkv + norms["qkv_bias"].double()
        qkv = qkv.unflatten(1, (model.qkv_heads, shape.head_dim))
        turning = qkv[:, :rotated]
        if norms["qk_norm"] is not None:
            turning = _norm(turning, norms["qk_norm"])
        turning = turning * cosine + turning.roll(shape.head_dim // 2, -1) * sine
        key_values = torch.cat([turning[:, shape.num_heads :], qkv[:, rotated:]], 1)
        flat = cache.view(-1, *cache.shape[2:])
        flat[step.slots] = key_values.unflatten(1, (2, shape.num_kv_heads)).to(cache.dtype)
        attended = torch.empty((len(x), shape.num_heads, shape.head_dim), dtype=torch.float64)
        row = 0
        for span in spans:
            context = cache[list(span.blocks)].double().flatten(0, 1)
            for i in range(span.count):
                end = span.first + (i + 1 if is_causal else span.count)
                for head in range(shape.num_heads):
                    keys, values = context[span.first_key : end, :, head // group].unbind(1)
                    scores = keys @ turning[row, head] / math.sqrt(shape.head_dim)
                    attended[row, head] = scores.softmax(0) @ values
                row += 1
        x = x + _product(attended.flatten(1), groups["output"])
        gate, up = _product(_norm(x, norms["mlp_norm"]), groups["gate_up"]).chunk(2, -1)
        x = x + _product(functional.silu(gate) * up, groups["down"])
    return x


def _norm(x: Tensor, weight: Tensor | None) -> Tensor:
    assert weight is not None
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def _product(x: Tensor, weight: Groups) -> Tensor:
    rows = quantize_rows(x.float().contiguous())
    dense = rows.values.unflatten(-1, (-1, 32)).double() * rows.scales.double()[..., None]
    return dense.flatten(1) @ weight.dense().double().T


def native_pass(
    layers: NativeLayers,
    model: Model,
    x: Tensor,
    spans: Sequence[Span],
    caches: Sequence[Tensor],
    *,
    is_causal: bool = True,
    taps: dict[int, Tensor] | None = None,
) -> Tensor:
    x = x.clone()
    layers.run_(x, make_step(spans, model.shape.head_dim, is_causal=is_causal), caches, taps or {})
    return x


SPANS = (Span(0, 9, (4, 2)), Span(30, 1, (9, 0, 7, 3)), Span(13, 4, (1, 8, 5), first_key=6))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "block"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_pass_is_its_twin(
    workers: Workers, path: InstructionPath, variant: str, is_causal: bool, dtype: torch.dtype
) -> None:
    model, x = make_model(variant), random((14, HIDDEN), 77)
    found_caches, twin_caches = make_caches(model, 10, dtype), make_caches(model, 10, dtype)
    layers = model.native(workers, path)
    found = native_pass(layers, model, x, SPANS, found_caches, is_causal=is_causal)
    expected = twin_pass(model, x, SPANS, twin_caches, is_causal=is_causal)
    # A number between two steps of a quantisation may fall to either side: then one of its group's 32 inputs is off by
    # 1/127 of the largest. Without such a fall the difference is that of float32.
    assert (found.double() - expected).norm() < 2e-3 * expected.norm()
    rows_off = (found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert rows_off.median() < (1e-3 if dtype == torch.bfloat16 else 2e-4)
    written = torch.zeros(10 * BLOCK_SIZE, dtype=torch.bool)
    written[[slot for span in SPANS for slot in span.slots]] = True
    for layer, (mine, other) in enumerate(zip(found_caches, twin_caches, strict=True)):
        mine, other = mine.flatten(0, 1), other.flatten(0, 1)
        assert torch.equal(mine[~written], other[~written])
        apart = (mine[written].float() - other[written].float()).abs()
        # The first layer's keys and values come from one product of the same integers.
        bound = (2.0**-7 if dtype == torch.bfloat16 else 1e-5) if layer == 0 else 0.05
        assert (apart <= bound * other[written].float().abs().clamp_min(1.0)).all()


def test_taps_hold_what_each_layer_gives(workers: Workers, path: InstructionPath) -> None:
    model, x = make_model("plain", num_layers=3), random((14, HIDDEN), 5)
    taps = {layer: torch.empty_like(x) for layer in (0, 2)}
    caches = make_caches(model, 10, torch.float32)
    found = native_pass(model.native(workers, path), model, x, SPANS, caches, taps=taps)
    assert torch.equal(taps[2], found)
    first = Model(model.shape, model.layers[:1], model.norms[:1])
    caches = make_caches(first, 10, torch.float32)
    assert torch.equal(native_pass(first.native(workers, path), first, x, SPANS, caches), taps[0])


@dataclass(frozen=True)
class Whole:
    """75 rows of one request in one pass."""

    model: Model
    x: Tensor
    span: Span
    output: Tensor
    caches: list[Tensor]


@pytest.fixture(scope="module", params=["qk_norm", "four_bits"])
def whole(library: NativeLibrary, request: pytest.FixtureRequest) -> Whole:
    """On one thread, by the plain path."""
    model, x = make_model(request.param, head_dim=32), random((75, HIDDEN), 31)
    span = Span(0, 75, tuple(torch.randperm(12, generator=torch.Generator().manual_seed(3)).tolist()))
    caches = make_caches(model, 12, torch.bfloat16)
    layers = model.native(Workers(library, 1), InstructionPath.PLAIN)
    return Whole(model, x, span, native_pass(layers, model, x, [span], caches), caches)


@pytest.mark.parametrize("chunk", [1, 2, 5, 8, 13, 64, 75])
def test_bits_do_not_follow_chunks(workers: Workers, path: InstructionPath, whole: Whole, chunk: int) -> None:
    caches = make_caches(whole.model, 12, torch.bfloat16)
    layers = whole.model.native(workers, path)
    for first in range(0, 75, chunk):
        count = min(chunk, 75 - first)
        span = Span(first, count, whole.span.blocks)
        found = native_pass(layers, whole.model, whole.x[first : first + count], [span], caches)
        assert torch.equal(found, whole.output[first : first + count])
    assert all(map(torch.equal, caches, whole.caches))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 7, 8, 15, 16, 33, 64, 70])
def test_bits_do_not_follow_company(workers: Workers, path: InstructionPath, whole: Whole, num_rows: int) -> None:
    """Rows as requests of their own, in any order: what they see was written before, and they write the same again."""
    layers = whole.model.native(workers, path)
    order = torch.randperm(75, generator=torch.Generator().manual_seed(num_rows))[:num_rows].tolist()
    caches = [cache.clone() for cache in whole.caches]
    spans = [Span(row, 1, whole.span.blocks) for row in order]
    assert torch.equal(native_pass(layers, whole.model, whole.x[order], spans, caches), whole.output[order])
    assert all(map(torch.equal, caches, whole.caches))


def test_no_rows(workers: Workers, path: InstructionPath) -> None:
    model = make_model("plain")
    caches = make_caches(model, 10, torch.bfloat16)
    untouched = [cache.clone() for cache in caches]
    assert native_pass(model.native(workers, path), model, torch.empty((0, HIDDEN)), [], caches).shape == (0, HIDDEN)
    assert all(map(torch.equal, caches, untouched))


@pytest.mark.parametrize("value", [0.0, 1e-42, 1e15, 3e38, math.inf, math.nan], ids=str)
def test_hostile_rows_stay_by_themselves(workers: Workers, path: InstructionPath, value: float) -> None:
    """Whatever a row holds, the rows of others keep their bits, and nothing is written outside its slots."""
    model, x = make_model("plain"), random((14, HIDDEN), 8)
    layers = model.native(workers, path)
    caches = make_caches(model, 10, torch.bfloat16)
    clean = native_pass(layers, model, x, SPANS, caches)
    bad = x.clone()
    bad[9] = value  # the one row of the second request
    bad_caches = make_caches(model, 10, torch.bfloat16)
    found = native_pass(layers, model, bad, SPANS, bad_caches)
    others = [row for row in range(14) if row != 9]
    assert torch.equal(found[others], clean[others])
    (slot,) = SPANS[1].slots
    kept = torch.arange(10 * BLOCK_SIZE) != slot
    for mine, other in zip(bad_caches, caches, strict=True):
        assert torch.equal(mine.flatten(0, 1)[kept], other.flatten(0, 1)[kept])
    assert found[9].isfinite().all() if abs(value) < 1e18 else True
    assert found[9].isnan().all() if math.isnan(value) else True
