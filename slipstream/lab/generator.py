"""Random scenarios, drawn from a seed: what a rule that decides by costs must not lose on (docs/policies.md).

A scenario is a machine, a workload, a load and sizes. Its place in the list decides the family of each (graph,
piecewise or CPU-like table; short or long prompts; light or heavy load), so that any sixty hold every combination; the
seed draws the rest. Figures are of the order that machines have; they belong to no machine in particular.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from slipstream.bench.arrivals import Arrivals, all_at_once, closed_loop
from slipstream.config import SchedulerConfig
from slipstream.lab.drawn_machines import MachineFamily, draw_machine
from slipstream.lab.simulate import SimulatedRequest, Simulation
from slipstream.scheduler.cost_table import CostTable
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.simulation.acceptance import AcceptanceModel
from slipstream.simulation.mixture_acceptance import AcceptanceClass, MixtureAcceptance

MOST_DRAFTS = 8
"""Largest K that a scenario's drafter and tables know."""

SEATS = (4, 8, 16, 32, 64)
TOKEN_BUDGETS = (128, 256, 512, 1024, 2048, 4096)
DRAWN_LAYOUTS = ("dspark", "dflash", "dspark_fill_in", "ngram")
BLOCK_SIZE = 16


class PromptFamily(StrEnum):
    """Whether outputs or prompts are the longer part."""

    SHORT = "short"
    LONG = "long"


class LoadFamily(StrEnum):
    """Whether seats stay empty for want of requests, or requests queue for them."""

    LIGHT = "light"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One drawn scenario.

    Attributes:
        seed, index: draw it again with `draw_scenario`.
        machine: what steps cost, and what the scheduler believes they cost.
        acceptance: the fate of drafts, and what the drafter believes; the same luck for every rule.
        num_speculative_tokens: K where the caller names none.
        workload, arrivals: prompts and outputs in tokens, and when they come.
    """

    seed: int
    index: int
    machine_family: MachineFamily
    prompt_family: PromptFamily
    load_family: LoadFamily
    machine: CostTable
    layout_name: str
    max_num_batched_tokens: int
    max_num_seqs: int
    num_speculative_tokens: int
    acceptance: AcceptanceModel
    workload: Sequence[SimulatedRequest]
    arrivals: Arrivals

    @property
    def name(self) -> str:
        """In words."""
        return (
            f"{self.seed}/{self.index}: {self.machine_family} ({self.machine.decode_graphs}), {self.prompt_family} "
            f"prompts, {self.load_family} load, B {self.max_num_batched_tokens}, S {self.max_num_seqs}"
        )

    def simulation(
        self, *, composition: str = "cost", verification: str = "confidence", num_speculative_tokens: int | None = None
    ) -> Simulation:
        """The scenario under these rules; `num_speculative_tokens` is K from 0 to MOST_DRAFTS."""
        most = self.num_speculative_tokens if num_speculative_tokens is None else num_speculative_tokens
        layout = LAYOUTS[self.layout_name]
        longest = max(request.num_prompt_tokens + request.num_output_tokens for request in self.workload)
        blocks_per_request = (longest + 2 * MOST_DRAFTS) // BLOCK_SIZE + 2
        config = SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=longest + 1,
            block_size=BLOCK_SIZE,
            num_kv_blocks=blocks_per_request * (self.max_num_seqs + 1),
            enable_prefix_caching=False,
            layout_name=self.layout_name,
            num_speculative_tokens=most,
            draft_capacity=layout.default_draft_capacity(self.max_num_batched_tokens, self.max_num_seqs, most),
            min_prefill_tokens=max(self.max_num_batched_tokens // 8, 1),
            composition=composition,
            verification=verification,
        )
        return Simulation(config, self.machine, self.acceptance, self.workload, self.arrivals, self.machine)


def draw_scenarios(seed: int, count: int = 60) -> list[Scenario]:
    """The first `count` scenarios of a seed."""
    return [draw_scenario(seed, index) for index in range(count)]


def draw_scenario(seed: int, index: int) -> Scenario:
    """Scenario `index` of a seed; the same at every call."""
    random = np.random.default_rng((seed, index))
    families = tuple(MachineFamily)
    machine_family = families[index % 3]
    prompt_family = tuple(PromptFamily)[index // 3 % 2]
    load_family = tuple(LoadFamily)[index // 6 % 2]
    seats = int(random.choice(SEATS))
    budgets = [budget for budget in TOKEN_BUDGETS if 2 * seats <= budget <= 128 * seats]
    budget = int(random.choice(budgets))
    machine = draw_machine(random, machine_family, seats, budget, MOST_DRAFTS)
    layout_name = str(random.choice(DRAWN_LAYOUTS))
    num_drafts = int(random.integers(1, MOST_DRAFTS + 1))
    workload = _draw_workload(random, prompt_family, load_family, seats)
    if load_family is LoadFamily.LIGHT:
        arrivals = closed_loop(len(workload), int(random.integers(1, max(seats // 4, 2) + 1)))
    elif random.random() < 0.5:
        arrivals = all_at_once(len(workload))
    else:
        arrivals = closed_loop(len(workload), int(seats * random.uniform(1.25, 3.0)))
    return Scenario(
        seed,
        index,
        machine_family,
        prompt_family,
        load_family,
        machine,
        layout_name,
        budget,
        seats,
        num_drafts,
        _draw_acceptance(random, seed * 1009 + index),
        workload,
        arrivals,
    )


def _draw_workload(
    random: np.random.Generator, prompt_family: PromptFamily, load_family: LoadFamily, seats: int
) -> list[SimulatedRequest]:
    """Lengths around a drawn mean, equal for some scenarios and spread for others."""
    if prompt_family is PromptFamily.SHORT:
        prompt, output = random.uniform(32, 400), random.uniform(150, 600)
    else:
        prompt, output = random.uniform(600, 3000), random.uniform(60, 300)
    spread = float(random.choice((0.0, 0.3, 0.8)))
    count = max(5 * seats, 60) if load_family is LoadFamily.HEAVY else max(seats, 16)

    def lengths(mean: float) -> list[int]:
        drawn = mean * np.exp(random.normal(-spread * spread / 2, spread, count))
        return [int(length) for length in np.clip(np.rint(drawn), 4, 8 * mean)]

    return [SimulatedRequest(*pair) for pair in zip(lengths(prompt), lengths(output), strict=True)]


def _draw_acceptance(random: np.random.Generator, seed: int) -> MixtureAcceptance:
    """One to three classes of requests whose chances fall with depth, and a drafter that is silent, right, or too sure
    of itself."""
    classes = []
    for _ in range(int(random.integers(1, 4))):
        first, decay = random.uniform(0.4, 0.95), random.uniform(0.9, 1.0)
        chances = tuple(float(first * decay**depth) for depth in range(MOST_DRAFTS))
        classes.append(AcceptanceClass(float(random.uniform(0.2, 1.0)), chances))
    error = random.choice((0.0, 0.0, 0.03))
    is_silent = random.random() < 0.3
    return MixtureAcceptance(
        classes,
        difficulty_spread=float(random.choice((0.0, 1.0, 2.0))),
        calibration_error=None if is_silent else float(error),
        seed=seed,
    )
