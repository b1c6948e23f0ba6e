"""A scheduler whose three rules are watched: what they were asked last, and what they answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.config import SchedulerConfig
from slipstream.scheduler.brains import drafting_for, planner_for, policy_for
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.drafting import DraftingCandidates, DraftingDecision, DraftingPolicy
from slipstream.scheduler.policy import StepCandidates, StepComposition, StepPolicy
from slipstream.scheduler.protocol import StopChecker
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.verification import Survivals, VerificationPlanner, VerifyOffer


@dataclass(slots=True)
class Decisions:
    """Of the step planned last; None where the rule was not asked.

    Attributes:
        drafts: drafts at hand, in the order of the plan's decodes, where rows had to be shared out.
        survivals: their chances of being accepted, as far as they are weighed.
    """

    candidates: StepCandidates | None = None
    composition: StepComposition | None = None
    drafting: DraftingDecision | None = None
    drafts: list[int] | None = None
    survivals: Survivals | None = None

    def clear(self) -> None:
        """Before a step is planned."""
        self.candidates = self.composition = self.drafting = self.drafts = self.survivals = None


@dataclass(frozen=True, slots=True)
class _Policy:
    rule: StepPolicy
    decisions: Decisions

    def compose(self, candidates: StepCandidates, costs: StepCosts | None, now: float) -> StepComposition:
        self.decisions.candidates = candidates
        self.decisions.composition = composition = self.rule.compose(candidates, costs, now)
        return composition


@dataclass(frozen=True, slots=True)
class _Planner:
    rule: VerificationPlanner
    decisions: Decisions

    @property
    def reason(self) -> str:
        return self.rule.reason

    def offer(self, survivals: Survivals) -> VerifyOffer:
        return self.rule.offer(survivals)

    def distribute(self, drafts: Sequence[int], survivals: Survivals | None, num_rows: int, turn: int) -> list[int]:
        self.decisions.drafts, self.decisions.survivals = list(drafts), survivals
        return self.rule.distribute(drafts, survivals, num_rows, turn)


@dataclass(frozen=True, slots=True)
class _Drafting:
    rule: DraftingPolicy
    decisions: Decisions

    def decide(self, candidates: DraftingCandidates, costs: StepCosts | None) -> DraftingDecision:
        self.decisions.drafting = decision = self.rule.decide(candidates, costs)
        return decision


@dataclass(slots=True)
class Observer:
    """Makes watched schedulers; `decisions` are those of the last step of the last one made."""

    decisions: Decisions = field(default_factory=Decisions)

    def make(self, config: SchedulerConfig, stops: StopChecker, costs: CostTable | None) -> Scheduler:
        """A scheduler that decides as an unwatched one."""
        return Scheduler(
            config,
            stop_checker=stops,
            costs=costs,
            policy=_Policy(policy_for(config), self.decisions),
            planner=_Planner(planner_for(config), self.decisions),
            drafting=_Drafting(drafting_for(config), self.decisions),
        )
