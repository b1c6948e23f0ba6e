"""How many drafts a step verifies: the best point of a whole stair-shaped cost curve (design 4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.costs import DecodeGraphs, StepCosts, StepShape
from slipstream.scheduler.verification import VerifyOffer

Milliseconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class VerifyChoice:
    """The verify rows of a step, and what they are expected to come to.

    Attributes:
        num_rows: verify rows in total.
        depth: every decode verifies its first `depth` drafts (one K, for uniform graphs); None: the planner decides.
        gain: expected accepted drafts.
        target_ms: of the step with these rows.
        tokens_per_ms: one token per decode and the gain, over `target_ms` and what the drafter's pass takes.
    """

    num_rows: int
    depth: int | None
    gain: float
    target_ms: float
    tokens_per_ms: float


def best_verify_rows(
    offer: VerifyOffer,
    costs: StepCosts,
    shape: StepShape,
    most: int,
    *,
    draft_ms: float = 0.0,
    rate: float | None = None,
) -> VerifyChoice:
    """The rows to verify beside what `shape` holds.

    In a step of decodes alone, those with the most expected tokens per millisecond. Beside prompt rows that ratio would
    be wrong: the prompt's time is spent whatever is verified, so rows are worth verifying as long as each brings more
    than the time it adds would bring in steps of decodes alone, `rate` tokens per millisecond.

    Args:
        offer: what rows bring; when it may not be trimmed, all that fit run.
        shape: the step without verify rows: decodes, prompt rows and KV.
        most: verify rows that fit.
        draft_ms: the drafter's pass that such a step also pays for.
        rate: tokens per millisecond of the best step of these decodes alone (`tokens_per_ms` of the choice for it);
            None for such a step itself.
    """
    tokens = float(shape.num_decodes)

    def choice(num_rows: int, depth: int | None, gain: float, target_ms: float) -> VerifyChoice:
        whole_ms = target_ms + draft_ms
        return VerifyChoice(num_rows, depth, gain, target_ms, (tokens + gain) / whole_ms if whole_ms > 0 else 0.0)

    most = min(most, len(offer.gains) - 1)
    if not offer.may_trim or most <= 0:
        most = max(most, 0)
        is_uniform = most == len(offer.gains) - 1 == (len(offer.depth_gains) - 1) * shape.num_decodes
        whole = replace(shape, num_verify_rows=most, is_uniform=most == 0 or is_uniform)
        return choice(most, None, float(offer.gains[most]), costs.target_ms(whole))

    ms = target_ms_by_verify_rows(costs, shape, most)
    gains = offer.gains[: most + 1]
    n = _best(tokens + gains, ms + draft_ms, rate, stop_early=offer.stop_early)
    best = choice(n, None, float(gains[n]), float(ms[n]))
    if costs.decode_graphs is not DecodeGraphs.UNIFORM or shape.num_prompt_rows:
        return best

    def value(c: VerifyChoice) -> float:
        return c.tokens_per_ms if rate is None else c.gain - rate * c.target_ms

    for k in range(1, len(offer.depth_rows)):
        rows = offer.depth_rows[k]
        if rows != k * shape.num_decodes or rows > most:
            break  # from here on some request has fewer drafts than the others
        at_depth = choice(k * shape.num_decodes, k, float(offer.depth_gains[k]), _uniform_ms(costs, shape, rows))
        if value(at_depth) > value(best):
            best = at_depth
        elif offer.stop_early:
            break
    return best


def target_ms_by_verify_rows(costs: StepCosts, shape: StepShape, most: int) -> Milliseconds:
    """Milliseconds of the target's step with n = 0 … `most` verify rows of any lengths beside `shape`, [most + 1].

    The KV that verify rows add is left out: they read what their request's anchor reads.
    """
    if isinstance(costs, CostTable):
        return costs.target_ms_by_verify_rows(shape, most)
    return np.array(
        [costs.target_ms(replace(shape, num_verify_rows=n, is_uniform=n == 0)) for n in range(most + 1)],
        dtype=np.float64,
    )


def _uniform_ms(costs: StepCosts, shape: StepShape, rows: int) -> float:
    return costs.target_ms(replace(shape, num_verify_rows=rows, is_uniform=True))


def _best(tokens: Milliseconds, ms: Milliseconds, rate: float | None, *, stop_early: bool) -> int:
    """The smallest n of the best value; with `stop_early` the last n before the value first fails to rise."""
    values = tokens / np.maximum(ms, 1e-9) if rate is None else tokens - rate * ms
    if stop_early:
        falls = np.flatnonzero(values[1:] <= values[:-1])
        return int(falls[0]) if len(falls) else len(values) - 1
    return int(values.argmax())
