"""Measures the figures of this CPU that the roofline of simulation/machines/hardware.py holds: best of many repeats.

    python benchmarks/machine_figures.py

The best, not the median: a roofline asks what the machine can do, and others may be at work beside this.
"""

from __future__ import annotations

import time

import torch

from slipstream.kernels.packing import multiply, pack_weight

NUM_LAYERS, HIDDEN, WIDE, VOCABULARY = 30, 576, 1536, 49152
LAYER = [(960, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE)]
"""The embedded model's products, [out, in]; query, key and value are one, gate and up are one."""

FEW, MANY = 1, 65


def main() -> None:
    """Print the three figures."""
    torch.manual_seed(0)
    shapes = [*LAYER * NUM_LAYERS, (VOCABULARY, HIDDEN)]
    weights = [pack_weight(torch.randn(shape).to(torch.bfloat16)) for shape in shapes]
    size = sum(out * width for out, width in shapes)

    def products_s(num_rows: int) -> float:
        """A pass's products, each at its shape's best; weights come from memory, since all are more than the cache."""
        inputs = {width: torch.randn(num_rows, width).to(torch.bfloat16) for width in (HIDDEN, WIDE)}
        best = dict.fromkeys(shapes, float("inf"))
        for _ in range(15):
            for weight, shape in zip(weights, shapes, strict=True):
                x = inputs[shape[1]]
                start = time.perf_counter()
                multiply(x, weight, None)
                best[shape] = min(best[shape], time.perf_counter() - start)
        return sum(best[shape] for shape in shapes)

    few, many = products_s(FEW), products_s(MANY)
    print(f"reads weights at {2 * size / few / 1e9:.1f} GB/s (the model's products at {FEW} row, {few * 1e3:.1f} ms)")
    rate = 2 * size * (MANY - FEW) / (many - few)
    print(f"multiplies at {rate / 1e9:.0f} GFLOP/s (what {MANY} rows take more, {many * 1e3:.1f} ms)")

    row = torch.randn(1, HIDDEN).to(torch.bfloat16)
    seconds = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(100):
            torch.add(row, row)
        seconds = min(seconds, (time.perf_counter() - start) / 100)
    print(f"starts a small operation in {seconds * 1e6:.2f} us")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
