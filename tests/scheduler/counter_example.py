"""The counter-example of DSpark (arXiv 2607.05147), Appendix A: two tokens A and B, one request, two drafts."""

from __future__ import annotations

from random import Random

from driver import make_request

from slipstream.request import Request
from slipstream.scheduler.costs import DecodeGraphs, StepRun, StepShape
from slipstream.scheduler.protocol import StepMode

TARGET = (0.7, 0.3)
DRAFTER = (0.5, 0.5)
FIRST_CONFIDENCE = 0.8
SECOND_CONFIDENCE = (0.9, 0.0)
"""Of the second draft, after A and after B: who looks at it verifies the first draft only when it is A."""


class TableOfThree:
    """SPS(1, 2, 3) = 1, .5, .45 steps per ms."""

    version = 0
    decode_graphs = DecodeGraphs.VARLEN

    def dispatch(self, shape: StepShape) -> StepRun:
        return StepRun(StepMode.EAGER, shape.num_rows)

    def target_ms(self, shape: StepShape) -> float:
        return 1.0 / {1: 1.0, 2: 0.5, 3: 0.45}[shape.num_rows]

    def draft_ms(self, num_requests: int, num_rows: int) -> float:
        return 0.0


def draw_draft(random: Random) -> int:
    """The first draft: 0 is A, 1 is B."""
    return int(random.random() >= DRAFTER[0])


def token_of(random: Random, draft: int, num_verified: int) -> int:
    """The first token by the textbook rule, when so many drafts are verified."""
    if num_verified == 0:
        return int(random.random() >= TARGET[0])
    if random.random() < min(1.0, TARGET[draft] / DRAFTER[draft]):
        return draft
    return 0  # what the target has more of than the drafter: all of it is A


def drafting_request(name: str, confidences: list[float] | None = None) -> Request:
    """A request whose drafts at hand have these confidences."""
    request = make_request(name, [1, 2, 3])
    request.draft_confidences = confidences
    return request
