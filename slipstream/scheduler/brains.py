"""From the names in a SchedulerConfig to the three rules that decide a step (design 4)."""

from __future__ import annotations

from slipstream.config import SchedulerConfig
from slipstream.scheduler.drafting import AlwaysDraft, DraftingPolicy
from slipstream.scheduler.policy import MixAtOncePolicy, StepPolicy
from slipstream.scheduler.verification import TurnByTurnPlanner, VerificationPlanner


def policy_for(config: SchedulerConfig) -> StepPolicy:
    """`--composition`."""
    return MixAtOncePolicy()


def planner_for(config: SchedulerConfig) -> VerificationPlanner:
    """`--verification`."""
    return TurnByTurnPlanner()


def drafting_for(config: SchedulerConfig) -> DraftingPolicy:
    """Follows `--verification`: what is not worth verifying is not worth drafting."""
    return AlwaysDraft()
