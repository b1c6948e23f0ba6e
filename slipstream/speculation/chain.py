"""Several drafters in a row: each request takes the first one that has drafts for it in this step.

The cheap and choosy one comes first: n-grams draft only where the text repeats itself, and cost nothing; a model drafts
for everybody else. Its own KV goes on in every step, whoever drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest

_PRIOR_CHANCE = 0.5
_PRIOR_WEIGHT = 4.0
_MEMORY = 500.0  # outcomes per position that count; older ones fade


@dataclass(slots=True)
class PartAcceptance:
    """What became of one part's drafts, judged by the text that followed them, verified or not.

    Attributes:
        num_drafts: that a later token of the text could be compared with, those after a wrong one left out.
        num_right: of them.
        tried, right: per position, fading.
    """

    num_drafts: int = 0
    num_right: int = 0
    tried: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def judge(self, drafts: Sequence[int], text: Sequence[int]) -> None:
        """Take in a block and the tokens that came in its place."""
        for k, (draft, token) in enumerate(zip(drafts, text, strict=False)):
            if k == len(self.tried):
                self.tried.append(0.0)
                self.right.append(0.0)
            fade = 1.0 - 1.0 / _MEMORY
            self.tried[k] = self.tried[k] * fade + 1.0
            self.right[k] = self.right[k] * fade + (draft == token)
            self.num_drafts += 1
            self.num_right += draft == token
            if draft != token:
                return

    def chances(self, num_drafts: int) -> list[float]:
        """Chance of each draft of a block given those before; a position never tried has that of the one before."""
        chances: list[float] = []
        for k in range(num_drafts):
            if k < len(self.tried):
                prior = _PRIOR_CHANCE * _PRIOR_WEIGHT
                chances.append((self.right[k] + prior) / (self.tried[k] + _PRIOR_WEIGHT))
            else:
                chances.append(chances[-1] if chances else _PRIOR_CHANCE)
        return chances


@dataclass(frozen=True, slots=True)
class _Given:
    """The newest block of a request: whose it was and where it began."""

    part: str
    position: int
    drafts: list[int]


class ChainDrafter:
    """A Drafter made of others.

    Args:
        parts: by name, the first to be asked first. Those without confidences get them from their own acceptance.
        layout: whose budgets the whole obeys: the largest of the parts'.

    Attributes:
        acceptance: per part.
    """

    def __init__(self, parts: Mapping[str, Drafter], layout: DraftLayout) -> None:
        self.layout = layout
        self.acceptance = {name: PartAcceptance() for name in parts}
        self._parts = dict(parts)
        self._given: dict[str, _Given] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        for request in requests:
            self._judge(request)
        blocks = [DraftBlock([], distributions=()) for _ in requests]
        waiting = list(range(len(requests)))
        for name, part in self._parts.items():
            if not waiting:
                break
            offered = part.propose([requests[i] for i in waiting])
            for i, block in zip(waiting, offered, strict=True):
                if block.token_ids:
                    blocks[i] = self._taken(name, requests[i], block)
            waiting = [i for i in waiting if not blocks[i].token_ids]
        return blocks

    def release(self, request_id: str) -> None:
        """See Drafter."""
        self._given.pop(request_id, None)
        for part in self._parts.values():
            part.release(request_id)

    def _judge(self, request: DraftRequest) -> None:
        given = self._given.pop(request.request_id, None)
        if given is not None:
            self.acceptance[given.part].judge(given.drafts, request.token_ids[given.position :])

    def _taken(self, name: str, request: DraftRequest, block: DraftBlock) -> DraftBlock:
        self._given[request.request_id] = _Given(name, len(request.token_ids), block.token_ids)
        confidences = block.confidences
        if confidences is None:
            confidences = self.acceptance[name].chances(len(block.token_ids))
        num_query_rows = self._parts[name].layout.draft_query_rows(0, request.num_draft_tokens)
        return DraftBlock(block.token_ids, confidences, num_query_rows, block.distributions)
