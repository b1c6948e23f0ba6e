"""Bucket edges. Latencies reach below 10 ms, where speculation is; vLLM's own edges are among them."""

from __future__ import annotations

# fmt: off
LATENCY = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)
FIRST_TOKEN = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
TOKEN_GAP = (
    0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
# fmt: on
STEP = TOKEN_GAP
ITERATION = (1.0, *(float(2**power) for power in range(3, 15)))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_counts(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, … up to `largest`."""
    edges = [1.0]
    scale = 1
    while True:
        for digit in (2, 5, 10):
            if digit * scale > largest:
                return tuple(edges)
            edges.append(float(digit * scale))
        scale *= 10
