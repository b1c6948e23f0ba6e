"""The generator of random scenarios: the same for a seed, every family, and fit to be run."""

from __future__ import annotations

from collections import Counter

import pytest

from slipstream.bench.metrics import summarize
from slipstream.lab.drawn_machines import MachineFamily
from slipstream.lab.generator import MOST_DRAFTS, LoadFamily, PromptFamily, draw_scenario, draw_scenarios
from slipstream.lab.simulate import simulate
from slipstream.scheduler.costs import DecodeGraphs, StepShape


def test_a_seed_is_one_list_and_another_seed_another() -> None:
    first, again, other = draw_scenarios(3), draw_scenarios(3), draw_scenarios(4)
    assert [scenario.machine for scenario in first] == [scenario.machine for scenario in again]
    assert [scenario.workload for scenario in first] == [scenario.workload for scenario in again]
    assert draw_scenario(3, 17).machine == first[17].machine
    assert all(a.machine != b.machine for a, b in zip(first, other, strict=True))


def test_sixty_hold_every_combination_of_families() -> None:
    counts = Counter((s.machine_family, s.prompt_family, s.load_family) for s in draw_scenarios(0))
    assert len(counts) == len(MachineFamily) * len(PromptFamily) * len(LoadFamily)
    assert set(counts.values()) == {5}
    assert {s.machine.decode_graphs for s in draw_scenarios(0)} == set(DecodeGraphs)


@pytest.mark.parametrize("seed", range(3))
def test_machines_are_what_their_family_says(seed: int) -> None:
    for scenario in draw_scenarios(seed):
        machine, seats = scenario.machine, scenario.max_num_seqs
        decode = machine.target_ms(StepShape(seats))
        mixed = machine.target_ms(StepShape(seats, num_prompt_rows=64))
        wider = machine.target_ms(StepShape(seats, num_prompt_rows=128))
        assert 0 < decode < mixed <= wider, scenario.name
        if scenario.machine_family is MachineFamily.CPU:
            assert machine.decode_graphs is DecodeGraphs.NONE
            assert wider - mixed > 0.2 * (mixed - decode), "each row counts"
        if scenario.machine_family is MachineFamily.GRAPH:
            assert mixed > 1.5 * decode, "there is a cliff"
        assert machine.draft_ms(4, 8) < machine.draft_ms(4, 32), "more drafts take longer"


def test_a_scenario_runs_under_every_rule_to_the_same_tokens() -> None:
    scenario = draw_scenario(0, 9)
    expected = sum(request.num_output_tokens for request in scenario.workload)
    for composition, verification, most in (("mix", "fixed", 0), ("burst", "fixed", None), ("cost", "confidence", 8)):
        simulation = scenario.simulation(
            composition=composition, verification=verification, num_speculative_tokens=most
        )
        assert simulation.config.num_speculative_tokens == (scenario.num_speculative_tokens if most is None else most)
        assert summarize(simulate(simulation).record).total_output_tokens == expected


def test_drafters_of_both_kinds_are_drawn() -> None:
    speaks = Counter(
        scenario.acceptance.request(0, 16).confidences(0, MOST_DRAFTS) is not None for scenario in draw_scenarios(0)
    )
    assert speaks[True] > 20 and speaks[False] > 5
