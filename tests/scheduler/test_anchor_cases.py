"""The anchor cases of design 3: how many requests run under each budget (128 prompts of 128 in, 512 out, K = 5)."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from driver import Run, drive, make_config, make_request

from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.scripted import ScriptedExecutor

K = 5
ACCEPTANCE_LENGTH = 4.72


def conditional_acceptance(length: float, num_drafts: int) -> float:
    """The one p with p + p^2 + … + p^K = length - 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**k for k in range(1, num_drafts + 1)) < length - 1 else (low, middle)
    return low


class LuckyDrafter:
    """The target says 0 for ever; each draft is right with one fixed chance."""

    layout = LAYOUTS["dspark"]

    def __init__(self, chance: float) -> None:
        self._random = Random(5)
        self._chance = chance

    def propose(self, requests):
        chance, random = self._chance, self._random
        return [
            DraftBlock([0 if random.random() < chance else 1 for _ in range(request.num_draft_tokens)])
            for request in requests
        ]

    def release(self, request_id: str) -> None:
        pass


def run_public_shape(budget: str, max_num_batched_tokens: int, lag: int = 0) -> tuple[Run, Scheduler]:
    scheduler = Scheduler(
        make_config(
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=64,
            max_model_len=1024,
            num_kv_blocks=64 * 64,
            layout_name="dspark",
            num_speculative_tokens=K,
            draft_budget=budget,
        )
    )
    executor = ScriptedExecutor(
        lambda prefix: np.array([1.0, 0.0]),
        num_kv_blocks=64 * 64,
        block_size=16,
        drafter=LuckyDrafter(conditional_acceptance(ACCEPTANCE_LENGTH, K)),
    )
    requests = [make_request(f"r{index}", [0] * 128, 512) for index in range(128)]
    return drive(scheduler, executor, requests, lag=lag), scheduler


@pytest.mark.parametrize(
    ("budget", "rows", "most_running"),
    [("shared", 512, {51, 52}), ("separate", 512, {64}), ("separate", 256, {64})],
)
def test_running_requests(budget: str, rows: int, most_running: set[int]) -> None:
    run, scheduler = run_public_shape(budget, rows)
    assert max(run.num_running) in most_running
    assert {len(tokens) for tokens in run.token_ids.values()} == {512}
    statistics = scheduler.statistics
    assert statistics.num_output_tokens == 128 * 512
    if rows == 512:
        # Drafts run to the end of their block, so the mean falls short of 4.72 only by the ends of the requests.
        assert 1 + statistics.num_accepted_tokens / statistics.num_decode_emits == pytest.approx(4.72, rel=0.02)


def test_separate_needs_fewer_steps_with_prompts() -> None:
    shared, _ = run_public_shape("shared", 512)
    separate, _ = run_public_shape("separate", 512)
    count = {name: sum(plan.kind == "mixed" for plan in run.plans) for name, run in (("s", shared), ("d", separate))}
    assert count["d"] < count["s"]
    assert len(separate.plans) < len(shared.plans)


def test_separate_runs_64_at_lag_1() -> None:
    run, _ = run_public_shape("separate", 512, lag=1)
    assert max(run.num_running) == 64
