"""Does deciding by costs lose anywhere? Random scenarios (lab/generator.py), simulated under every rule.

    python benchmarks/never_worse.py [--what composition|verification] [--seed 0 1 2] [--count 60] [--processes N]

composition: output throughput of `cost` over the better of `mix` and `burst`, under `--verification`.
verification: output throughput of `confidence` at K = 8 over the best `fixed` K in 0 … 8, under `--composition`.

Prints every scenario that loses more than 2 %, and per seed the verdict: at least 95 % within 2 %, none beyond 5 %.
Deterministic. Exits with 1 when a seed fails.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from functools import partial

from slipstream.bench.metrics import summarize
from slipstream.lab.generator import MOST_DRAFTS, Scenario, draw_scenario
from slipstream.lab.scenario_run import map_cases
from slipstream.lab.simulate import simulate

NEAR, FAR, SHARE = 0.98, 0.95, 0.95


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens per second of the rule under test, and of the others by name."""

    scenario: str
    tested: float
    others: dict[str, float]

    @property
    def ratio(self) -> float:
        """Over the best of the others."""
        return self.tested / max(self.others.values())

    def __str__(self) -> str:
        others = ", ".join(f"{name} {value:.1f}" for name, value in self.others.items())
        return f"{self.ratio:6.3f}  {self.scenario}: {self.tested:.1f} tok/s against {others}"


def throughput(scenario: Scenario, composition: str, verification: str, num_drafts: int | None = None) -> float:
    run = simulate(
        scenario.simulation(composition=composition, verification=verification, num_speculative_tokens=num_drafts)
    )
    return summarize(run.record).output_throughput


def compare_composition(seed: int, index: int, *, verification: str) -> Outcome:
    scenario = draw_scenario(seed, index)
    mix, burst, cost = (throughput(scenario, name, verification) for name in ("mix", "burst", "cost"))
    return Outcome(scenario.name, cost, {"mix": mix, "burst": burst})


def compare_verification(seed: int, index: int, *, composition: str) -> Outcome:
    scenario = draw_scenario(seed, index)
    fixed = {f"K={k}": throughput(scenario, composition, "fixed", k) for k in range(MOST_DRAFTS + 1)}
    return Outcome(scenario.name, throughput(scenario, composition, "confidence", MOST_DRAFTS), fixed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("composition", "verification"), default="composition")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--composition", default="cost", help="while verification is judged")
    parser.add_argument("--verification", default="confidence", help="while composition is judged")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if args.what == "composition":
        work = partial(compare_composition, verification=args.verification)
    else:
        work = partial(compare_verification, composition=args.composition)
    all_pass = True
    for seed in args.seed:
        cases = [(seed, index) for index in range(args.count)]
        outcomes = list(map_cases(work, cases, args.processes))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.ratio):
            if outcome.ratio < NEAR:
                print(outcome)
        near = sum(outcome.ratio >= NEAR for outcome in outcomes) / len(outcomes)
        worst = min(outcome.ratio for outcome in outcomes)
        mean = sum(outcome.ratio for outcome in outcomes) / len(outcomes)
        passes = near >= SHARE and worst >= FAR
        all_pass = all_pass and passes
        verdict = "passes" if passes else "FAILS"
        print(f"seed {seed}: {near:.1%} within 2 %, worst {worst:.3f}, mean {mean:.3f}: {verdict}", flush=True)
    return 0 if all_pass else 1


if __name__ == "__main__":
    raise SystemExit(main())
