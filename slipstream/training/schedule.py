"""The learning rate as a function of the step."""

from __future__ import annotations

import math


def learning_rate(step: int, num_steps: int, peak: float, warmup: float) -> float:
    """Of step 0 … num_steps - 1: a straight rise over the share `warmup` of the steps, then half a cosine to 0."""
    rising = max(round(warmup * num_steps), 1)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1.0 + math.cos(math.pi * (step - rising) / max(num_steps - rising, 1)))
