"""From the names in a SchedulerConfig to the three rules that decide a step, and what they may know (design 4)."""

from __future__ import annotations

from slipstream.config import STANDARD_REJECTION, SchedulerConfig
from slipstream.scheduler.acceptance import AcceptanceTracker
from slipstream.scheduler.composition import BurstPolicy, CostPolicy, PromptLimits
from slipstream.scheduler.confidence import ConfidencePlanner
from slipstream.scheduler.drafting import AlwaysDraft, DraftingPolicy, ScheduledDrafting
from slipstream.scheduler.drafting_by_cost import DraftByCost
from slipstream.scheduler.outcome_acceptance import OutcomeTracker
from slipstream.scheduler.policy import MixAtOncePolicy, StepPolicy
from slipstream.scheduler.verification import TurnByTurnPlanner, VerificationPlanner


def policy_for(config: SchedulerConfig) -> StepPolicy:
    """`--composition`."""
    limits = PromptLimits(config.max_prompt_wait_s, config.max_tpot_ms)
    if config.composition == "burst":
        return BurstPolicy(limits)
    if config.composition == "cost":
        return CostPolicy(limits)
    return MixAtOncePolicy()


def planner_for(config: SchedulerConfig) -> VerificationPlanner:
    """`--verification`."""
    return ConfidencePlanner() if config.verification == "confidence" else TurnByTurnPlanner()


def drafting_for(config: SchedulerConfig) -> DraftingPolicy:
    """Follows `--verification`: what is not worth verifying is not worth drafting."""
    policy: DraftingPolicy = DraftByCost() if config.verification == "confidence" else AlwaysDraft()
    return ScheduledDrafting(config.draft_schedule, policy) if config.draft_schedule else policy


def acceptance_for(config: SchedulerConfig) -> AcceptanceTracker:
    """`rejection_sample_method`: under the textbook rule no draft may decide whether it is verified itself."""
    kind = OutcomeTracker if config.rejection_sample_method == STANDARD_REJECTION else AcceptanceTracker
    return kind(config.num_speculative_tokens)
