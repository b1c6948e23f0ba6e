"""When prompts run: the rules behind `--composition burst` and `cost`: design 4, docs/policies.md."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.outlook import StepOutlook, outlook_of, row_price_without_decodes
from slipstream.scheduler.policy import MixAtOncePolicy, StepCandidates, StepComposition

WORTH_WAITING = 0.05
"""Nobody waits for a saving of less than this part of a step of decodes alone."""


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """What bounds every rule that holds prompts back.

    Attributes:
        max_wait_s: a prompt that could run is held back no longer.
        max_tpot_ms: from one step with prompt rows to the next, running requests keep this time per token on average;
            None is no limit. The wait limit comes first.
    """

    max_wait_s: float
    max_tpot_ms: float | None = None

    def expired(self, candidates: StepCandidates) -> bool:
        """Whether the wait limit fires."""
        return candidates.prompt_wait.oldest_s >= self.max_wait_s

    def is_too_soon(self, candidates: StepCandidates) -> bool:
        """Whether running requests have not yet made up for the last step with prompt rows."""
        wait = candidates.prompt_wait
        return self.max_tpot_ms is not None and wait.ms_since_ran > self.max_tpot_ms * wait.tokens_since_ran


class BurstPolicy:
    """Holds prompts back until they fill a step beside the decodes' own rows, or the wait limit fires."""

    def __init__(self, limits: PromptLimits) -> None:
        self._limits = limits

    def compose(self, candidates: StepCandidates, costs: StepCosts | None, now: float) -> StepComposition:
        """See StepPolicy. Mixes at once without costs; runs prompts at once where nobody decodes."""
        if costs is None or not candidates.num_decodes:
            return MixAtOncePolicy().compose(candidates, costs, now)
        outlook = outlook_of(candidates, costs)
        rows = candidates.num_prompt_rows
        if not rows:
            return _decodes_alone(outlook)
        if self._limits.expired(candidates):
            return _with_prompts(outlook, f"prompts have waited {candidates.prompt_wait.oldest_s:.1f} s")
        if self._limits.is_too_soon(candidates):
            return _decodes_alone(outlook, f"{rows} prompt rows wait for the time per token")
        if rows < candidates.num_rows_left:
            return _decodes_alone(outlook, f"{rows} prompt rows wait to fill a step")
        return _with_prompts(outlook, "prompts fill the step")


class CostPolicy:
    """Runs prompts when waiting for more of them would save less than the idle seats lose."""

    def __init__(self, limits: PromptLimits) -> None:
        self._limits = limits

    def compose(self, candidates: StepCandidates, costs: StepCosts | None, now: float) -> StepComposition:
        """See StepPolicy. Mixes at once without costs; runs prompts at once where nobody decodes."""
        if costs is None:
            return MixAtOncePolicy().compose(candidates, costs, now)
        if not candidates.num_decodes:
            composition = MixAtOncePolicy().compose(candidates, costs, now)
            row_price = row_price_without_decodes(candidates, costs)
            return replace(composition, finishes_prompts=self._finishes(candidates, row_price, None))
        outlook = outlook_of(candidates, costs)
        rows = candidates.num_prompt_rows
        if not rows:
            return _decodes_alone(outlook)
        if self._limits.expired(candidates):
            return _with_prompts(outlook, f"prompts have waited {candidates.prompt_wait.oldest_s:.1f} s")
        if self._limits.is_too_soon(candidates):
            return _decodes_alone(outlook, f"{rows} prompt rows wait for the time per token")
        gain = _gain_of_waiting(outlook)
        if gain > WORTH_WAITING * candidates.num_decodes * outlook.tokens_per_decode:
            return _decodes_alone(outlook, f"{rows} prompt rows wait for more, which saves {gain:.0f} tokens")
        composition = _with_prompts(outlook)
        composition.finishes_prompts = self._finishes(candidates, outlook.row_price, outlook)
        if not composition.finishes_prompts:
            composition.reason = "prompts of several steps end together"
        return composition

    def _finishes(self, candidates: StepCandidates, row_price: float, outlook: StepOutlook | None) -> bool:
        """Whether prompts may run their last rows in this step.

        A prompt that ends begins to decode, and its anchor then takes a row from prompts in each further step of the
        burst. Where such a row is worth more than the anchor's token, the prompts of a burst end together in its last
        step. A rest that fills no step of its own is worth one more step when its seats would else idle for longer.
        """
        limits, left = self._limits, candidates.num_rows_left
        rest = candidates.num_ready_rows - left
        if row_price <= 1.0 or rest <= 0 or candidates.prompt_wait.burst_s >= limits.max_wait_s:
            return True
        if outlook is None:
            return False
        if limits.max_tpot_ms is not None:
            return True  # steps of decodes come between
        if rest >= left:
            return False
        size = max(candidates.next_prompt_rows, 1.0)
        steps = outlook.steps_to_ready(math.ceil((left - rest) / size))
        loss = outlook.loss_per_ms / max(candidates.prompt_wait.num_ready, 1) * math.ceil(rest / size)
        return loss * outlook.decode_ms * steps <= row_price * (left - rest)


def _decodes_alone(outlook: StepOutlook, reason: str = "") -> StepComposition:
    """The best step without prompt rows."""
    decode = outlook.decode
    return StepComposition(0, decode.num_rows, decode.depth, reason, outlook.tokens_per_decode)


def _with_prompts(outlook: StepOutlook, reason: str = "") -> StepComposition:
    """A step with prompt rows. Where rows are short, a verify row runs only if it brings more than the price of the
    prompt row in its place, which would have to run later."""
    candidates = outlook.candidates
    left, rows = candidates.num_rows_left, candidates.num_prompt_rows
    if rows + candidates.num_drafts > left:
        worth_more = int(np.count_nonzero(outlook.token_value * np.diff(outlook.offer.gains) > outlook.row_price))
        rows = min(rows, max(left - worth_more, 1))
    choice = outlook.mixed(rows)
    return StepComposition(rows, choice.num_rows, choice.depth, reason, 1.0 + choice.gain / candidates.num_decodes)


def _gain_of_waiting(outlook: StepOutlook) -> float:
    """The most tokens that waiting for more prompts saves, less what the seats lose meanwhile; 0 or less: run them.

    Prompts that run together share what a step costs whatever it holds, and run beside fewer anchors: those of the
    decodes that end meanwhile, and those of the ready prompts beside the prompts to come.
    """
    candidates, wait = outlook.candidates, outlook.candidates.prompt_wait
    left, rows = candidates.num_rows_left, candidates.num_prompt_rows
    num_ready, size, ends = wait.num_ready, candidates.next_prompt_rows, candidates.tokens_to_ends
    loss = outlook.loss_per_ms
    steps_now = num_ready * size / left
    anchor_price = max(outlook.row_price - outlook.token_value, 0.0)  # it makes a token, which a prompt row does not
    longest = ends[-1] if ends else math.inf
    later = num_ready * min(size / left, longest)
    gain = anchor_price * (min(steps_now, longest) + later) - loss * outlook.decode_ms * outlook.steps_to_ready(1)
    if rows < left:
        unfilled = outlook.row_price * (left - rows)
        setup = outlook.setup(rows)
        lost = loss / max(num_ready, 1) * wait.seat_seconds * 1e3
        if lost >= min(setup, unfilled):
            return 0.0  # waited for as much as could be saved, and nobody came
        return gain + min((setup + lost) / max(num_ready, 1), unfilled)
    loss_per_token = loss * outlook.decode_ms / outlook.tokens_per_decode
    anchors = 0.0
    for tokens in ends:
        # A decode that ends within the burst is an anchor until then, and the next prompt joins the burst by itself.
        anchors += tokens if tokens <= steps_now else steps_now + later
        gain = max(gain, anchor_price * anchors - loss_per_token * tokens)
    return gain
