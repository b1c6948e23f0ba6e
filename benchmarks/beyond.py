"""What composition by cost makes of the public result's machine and workloads.

    python benchmarks/beyond.py [scenarios/public-result.toml] [--piecewise 25 40] [--verification fixed]

For each workload: the scenario's `after` variant (separate budget, prompts mixed in at once), then the same with
`burst` and `cost`. The bar counts workloads with prompts of at most 0.4 times the outputs: `cost` makes in the median
at least 1.8 times the throughput, with median TTFT and TPOT no worse in any. With `--piecewise`, steps with prompt rows
have graphs and take at least so many milliseconds; reported without a bar. Deterministic. Exits with 1 below the bar.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from slipstream.bench.metrics import BenchResult, Distribution, summarize
from slipstream.lab.scenario import Scenario
from slipstream.lab.scenario_file import load_scenario
from slipstream.lab.simulate import simulate
from slipstream.lab.workload import Workload

BAR, MOST_PROMPT_SHARE = 1.8, 0.4
RULES = ("mix", "burst", "cost")


def run(scenario: Scenario, workload: Workload, composition: str, verification: str) -> BenchResult:
    simulation = scenario.simulation(workload, scenario.variant("after"))
    config = replace(simulation.config, composition=composition, verification=verification)
    return summarize(simulate(replace(simulation, config=config, costs=simulation.machine)).record)


def median_of(distribution: Distribution | None) -> float:
    assert distribution is not None
    return distribution.median


def counts(result: BenchResult) -> bool:
    return result.total_input_tokens <= MOST_PROMPT_SHARE * result.total_output_tokens


def compare(scenario: Scenario, verification: str) -> bool:
    """Print all workloads; whether the bar holds."""
    gains: list[float] = []
    all_no_worse = True
    for workload in scenario.workloads:
        print(workload.name)
        results = {rule: run(scenario, workload, rule, verification) for rule in RULES}
        after = results["mix"]
        for rule, result in results.items():
            gain = result.output_throughput / after.output_throughput
            ttft, tpot = median_of(result.ttft_ms), median_of(result.tpot_ms)
            mixed = sum(result.steps.counts.get(kind, 0) for kind in ("mixed", "prefill")) if result.steps else 0
            print(
                f"  {rule:6s} {result.output_throughput:7.0f} tok/s (x {gain:.2f})  TPOT {tpot:5.1f} ms  "
                f"TTFT {ttft / 1e3:5.1f} s  {mixed} steps with prompts"
            )
        cost = results["cost"]
        if counts(cost):
            gains.append(cost.output_throughput / after.output_throughput)
            no_worse = median_of(cost.ttft_ms) <= median_of(after.ttft_ms)
            all_no_worse = all_no_worse and no_worse and median_of(cost.tpot_ms) <= median_of(after.tpot_ms)
        else:
            print("  (not counted: prompts are longer than 0.4 times the outputs)")
    gain = statistics.median(gains)
    print(f"median over {len(gains)} workloads: x {gain:.3f}; TTFT and TPOT no worse in all: {all_no_worse}\n")
    return gain >= BAR and all_no_worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default="scenarios/public-result.toml")
    parser.add_argument("--piecewise", type=float, nargs="*", default=[], metavar="MS")
    parser.add_argument("--verification", default="fixed")
    args = parser.parse_args()
    scenario = load_scenario(args.scenario, [])
    holds = compare(scenario, args.verification)
    print(f"bar of {BAR}: {'held' if holds else 'MISSED'}\n")
    for ms in args.piecewise:
        print(f"== piecewise graphs, steps with prompts take at least {ms:g} ms ==")
        compare(load_scenario(args.scenario, [f"machine.piecewise_ms={ms:g}"]), args.verification)
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
