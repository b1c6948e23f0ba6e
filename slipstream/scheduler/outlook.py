"""StepOutlook: what the next step could come to, with prompts and without, in tokens and milliseconds (design 4).

The price of a step is what full seats would make in the time that it takes, less the time in which decodes alone would
make its tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from slipstream.scheduler.costs import StepCosts, StepShape
from slipstream.scheduler.policy import StepCandidates
from slipstream.scheduler.verification import VerifyOffer, offer_of
from slipstream.scheduler.verify_rows import VerifyChoice, best_verify_rows

NOTHING_OFFERED = offer_of(np.zeros((0, 0)), may_trim=True)


@dataclass(frozen=True, slots=True)
class StepOutlook:
    """Made by `outlook_of`.

    Attributes:
        candidates, costs, offer: what was asked.
        decode: the best step of decodes alone.
        draft_ms: the drafter's pass after such a step.
        rate: tokens per millisecond of decodes alone, once the seats are filled that ready prompts could fill.
        row_price: the least price of a prompt row: in a step that prompts fill, or in one where they fill what the best
            verify rows leave. It is paid now or later.
    """

    candidates: StepCandidates
    costs: StepCosts
    offer: VerifyOffer
    decode: VerifyChoice
    draft_ms: float
    rate: float
    row_price: float = 0.0

    @property
    def decode_ms(self) -> float:
        """Milliseconds of the best step of decodes alone."""
        return self.decode.target_ms + self.draft_ms

    @property
    def tokens_per_decode(self) -> float:
        """Expected tokens of one request in such a step."""
        return 1.0 + self.decode.gain / self.candidates.num_decodes

    @property
    def token_value(self) -> float:
        """A token of these decodes in tokens of full seats: they would take the longer to make it."""
        return self.rate / self.decode.tokens_per_ms if self.decode.tokens_per_ms > 0 else 1.0

    @property
    def loss_per_ms(self) -> float:
        """Tokens per millisecond that the seats would make which ready prompts could fill."""
        return self.rate - self.decode.tokens_per_ms

    def mixed(self, num_prompt_rows: int) -> VerifyChoice:
        """The best verify rows beside so many prompt rows."""
        room = self.candidates.num_rows_left - num_prompt_rows
        shape = self._shape(num_prompt_rows, 0)
        return best_verify_rows(
            self.offer, self.costs, shape, room, draft_ms=self.draft_ms, rate=self.decode.tokens_per_ms
        )

    def price(self, num_prompt_rows: int, choice: VerifyChoice) -> float:
        """Tokens that the step with these prompt and verify rows costs."""
        ms = self.costs.target_ms(self._shape(num_prompt_rows, choice.num_rows)) + self.draft_ms
        return self.rate * ms - self.token_value * (self.candidates.num_decodes + choice.gain)

    def setup(self, num_prompt_rows: int) -> float:
        """What a step with so many prompt rows costs whatever it holds: its price, less that of its rows by the line to
        the step that prompts fill. 0 where time is a straight line over rows, the whole price where it is flat."""
        price = self.price(num_prompt_rows, self.mixed(num_prompt_rows))
        left = self.candidates.num_rows_left
        slope = max(self.row_price * left - price, 0.0) / (left - num_prompt_rows)
        return max(price - slope * num_prompt_rows, 0.0)

    def steps_to_ready(self, num_prompts: int) -> float:
        """Steps of decodes alone until so many more prompts are ready; infinity where nothing tells."""
        ends = self.candidates.tokens_to_ends
        by_ends = ends[num_prompts - 1] / self.tokens_per_decode if len(ends) >= num_prompts else math.inf
        by_pace = num_prompts * self.candidates.prompt_wait.decode_steps_per_ready / self.candidates.num_decodes
        return min(by_ends, by_pace)

    def _shape(self, num_prompt_rows: int, num_verify_rows: int) -> StepShape:
        candidates = self.candidates
        share = min(num_prompt_rows / max(candidates.num_prompt_rows, 1), 1.0)
        return StepShape(
            candidates.num_decodes,
            num_verify_rows,
            num_prompt_rows,
            int(candidates.num_emitting_prompts * share),
            candidates.num_kv_tokens + round(candidates.num_prompt_kv_tokens * share),
            is_uniform=not num_verify_rows,
        )


def outlook_of(candidates: StepCandidates, costs: StepCosts) -> StepOutlook:
    """Weigh the best step of decodes alone against steps with prompts. At least one request decodes."""
    offer = candidates.offer() if candidates.offer is not None and candidates.num_drafts else NOTHING_OFFERED
    num_decodes, left = candidates.num_decodes, candidates.num_rows_left
    draft_ms = costs.draft_ms(num_decodes, num_decodes * candidates.num_draft_rows_per_request)
    alone = StepShape(num_decodes, num_kv_tokens=candidates.num_kv_tokens)
    decode = best_verify_rows(offer, costs, alone, left, draft_ms=draft_ms)
    outlook = StepOutlook(candidates, costs, offer, decode, draft_ms, decode.tokens_per_ms)
    if not candidates.num_prompt_rows:
        return outlook
    outlook = replace(outlook, rate=max(decode.tokens_per_ms, _filled_rate(candidates, costs, decode)))
    nothing = replace(decode, num_rows=0, gain=0.0)
    row_price = outlook.price(left, nothing) / left
    if 0 < decode.num_rows < left:
        beside = left - decode.num_rows
        row_price = min(row_price, outlook.price(beside, decode) / beside)
    return replace(outlook, row_price=max(row_price, 0.0))


def _filled_rate(candidates: StepCandidates, costs: StepCosts, decode: VerifyChoice) -> float:
    num_decodes = candidates.num_decodes + candidates.prompt_wait.num_ready
    growth = num_decodes / candidates.num_decodes
    num_kv_tokens = round(candidates.num_kv_tokens * growth)
    shape = StepShape(num_decodes, round(decode.num_rows * growth), num_kv_tokens=num_kv_tokens)
    ms = costs.target_ms(shape) + costs.draft_ms(num_decodes, num_decodes * candidates.num_draft_rows_per_request)
    return (candidates.num_decodes + decode.gain) * growth / ms if ms > 0 else 0.0


def row_price_without_decodes(candidates: StepCandidates, costs: StepCosts) -> float:
    """The price of a prompt row while nobody decodes: as if all ready prompts did, without drafts."""
    num_decodes, rows = candidates.prompt_wait.num_ready, candidates.num_rows_left
    alone_ms = costs.target_ms(StepShape(num_decodes))
    if not num_decodes or alone_ms <= 0:
        return 0.0
    full = StepShape(num_decodes, num_prompt_rows=max(rows - num_decodes, 1), num_kv_tokens=rows)
    return num_decodes * (costs.target_ms(full) / alone_ms - 1.0) / rows
