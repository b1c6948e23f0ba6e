"""How close the native kernels come to what this machine can do, part by part of a step of the embedded model.

    python benchmarks/kernel_roofline.py [--repeats 15] [--context 256]

Limits are measured here: bytes per second by copying memory far larger than the caches (read and written bytes both
count) and by summing it (reading alone, which is what weights are), products per second by the product kernel itself on
a weight that stays in the caches, with many rows. A part's floor is the larger of its bytes over the reading rate and
its products over that rate; weights count once a step, KV once a request.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.config import EMBEDDED_MODEL
from slipstream.execution.build import thread_count
from slipstream.kernels.native.groups import GROUP, Groups, group_weight
from slipstream.kernels.native.library import Workers, open_library
from slipstream.kernels.native.linear import NativeLinear, PackedWeight, pack
from slipstream.models.loading import open_model
from slipstream.models.native_decoder import NativeDecoder, native_step

BLOCK_SIZE = 16
ROWS = (1, 2, 4, 6, 16, 64)
NUM_BYTES = 256 << 20


@dataclass(frozen=True)
class Part:
    """A part of a step: what it must read and multiply, and what it took."""

    name: str
    rows: int
    num_bytes: float
    products: dict[int, float]  # bits -> multiplications
    ms: float

    def floor_ms(self, bytes_per_s: float, rates: dict[int, float]) -> tuple[float, str]:
        reading = self.num_bytes / bytes_per_s * 1e3
        multiplying = sum(count / rates[bits] for bits, count in self.products.items()) * 1e3
        return (reading, "memory") if reading >= multiplying else (multiplying, "products")


def best_ms(run: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs: what the machine can do, not what its neighbours leave of it."""
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def product_rate(linear: NativeLinear, weight: Groups, repeats: int) -> float:
    """Multiplications per second of a weight that stays in the caches."""
    packed = pack(linear.library, weight)
    rows = linear.quantize(torch.randn((64, weight.shape[1])))
    ms = best_ms(lambda: linear.multiply_quantized(rows, packed), 20 * repeats)
    return 64 * packed.shape[0] * packed.shape[1] / ms * 1e3


def four_bits(num_outputs: int, num_inputs: int) -> Groups:
    groups = (num_outputs, num_inputs // GROUP)
    values = torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.uint8)
    return Groups(4, values, torch.rand(groups).half(), -torch.rand(groups).half())


def size_of(weights: list[PackedWeight]) -> tuple[float, dict[int, float]]:
    """Bytes of some weights, and multiplications that a row takes, by bits."""
    products: dict[int, float] = {}
    for weight in weights:
        products[weight.bits] = products.get(weight.bits, 0.0) + weight.shape[0] * weight.shape[1]
    return float(sum(weight.records.numel() for weight in weights)), products


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--context", type=int, default=256, help="tokens that each request looks back on")
    args = parser.parse_args()

    library = open_library()
    if library is None:
        raise SystemExit("the native library was not built; slipstream doctor says more")
    num_threads = thread_count(None)
    source_bytes, target_bytes = (torch.ones(NUM_BYTES, dtype=torch.uint8) for _ in range(2))
    torch.set_num_threads(num_threads)
    copied = 2 * NUM_BYTES / best_ms(lambda: target_bytes.copy_(source_bytes), args.repeats) * 1e3
    whole = source_bytes.view(torch.float32)
    read = NUM_BYTES / best_ms(lambda: whole.sum(), args.repeats) * 1e3
    torch.set_num_threads(1)

    workers = Workers(library, num_threads)
    linear = NativeLinear(workers)
    rates = {4: product_rate(linear, four_bits(1024, 576), args.repeats)}
    rates[8] = product_rate(linear, group_weight(torch.randn(1024, 576)), args.repeats)
    print(f"{num_threads} threads, {library.best_path.name.lower()}")
    print(f"copying {copied / 1e9:.1f} GB/s (read and written), reading {read / 1e9:.1f} GB/s")
    print(f"products of bytes: {rates[4] / 1e9:.0f} G/s with 4-bit weights, {rates[8] / 1e9:.0f} G/s with 8-bit ones")

    source = open_model(EMBEDDED_MODEL, progress=False)
    decoder = NativeDecoder(source.config, source.load_stored(), workers=workers)
    config = source.config
    layers = decoder._layers._kept
    weights = [weight for layer in layers for weight in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    layer_bytes, layer_products = size_of(weights)
    head_bytes, head_products = size_of([decoder._ends._head])
    kv_bytes = config.num_layers * 2 * config.num_kv_heads * config.head_dim * 2
    blocks = -(-(args.context + 1) // BLOCK_SIZE)
    cache = decoder.make_cache(max(ROWS) * blocks, BLOCK_SIZE)
    for layer in cache.layers:
        layer.normal_()

    parts = []
    for rows in ROWS:
        for context in (0, args.context):
            requests = [AttentionRequest(i, 1, context, list(range(i * blocks, (i + 1) * blocks))) for i in range(rows)]
            metadata = build_metadata(requests, BLOCK_SIZE, cache.scratch_block, decoder.device)
            step = native_step(metadata, decoder._rotary.at(metadata.positions))
            x = torch.randn((rows, config.hidden_size))
            ms = best_ms(lambda x=x, step=step: decoder._layers.run_(x.clone(), step, cache.layers, {}), args.repeats)
            name = "layers" if not context else f"layers, {context} tokens back"
            num_bytes = layer_bytes + rows * context * kv_bytes
            parts.append(Part(name, rows, num_bytes, {b: rows * n for b, n in layer_products.items()}, ms))
        hidden = torch.randn((rows, config.hidden_size))
        ms = best_ms(lambda hidden=hidden: decoder.compute_logits(hidden), args.repeats)
        logits = rows * config.vocab_size * 4
        parts.append(Part("head", rows, head_bytes + logits, {b: rows * n for b, n in head_products.items()}, ms))

    print("\n| part | rows | MB | million products | floor, ms | bound by | measured, ms | of the floor's speed |")
    print("|---|---|---|---|---|---|---|---|")
    for part in sorted(parts, key=lambda part: (part.name, part.rows)):
        floor, bound = part.floor_ms(read, rates)
        print(
            f"| {part.name} | {part.rows} | {part.num_bytes / 1e6:.0f} | {sum(part.products.values()) / 1e6:.0f} "
            f"| {floor:.2f} | {bound} | {part.ms:.2f} | {floor / part.ms:.0%} |"
        )


if __name__ == "__main__":
    main()
