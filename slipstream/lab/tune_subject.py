"""What is tuned: a scenario, run under other settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.bench.metrics import BenchResult
from slipstream.config import PROFILE_COSTS, SchedulerConfig, SettingError
from slipstream.lab.scenario import MACHINE_COSTS, NO_COSTS, Scenario, Variant
from slipstream.lab.scenario_run import run_case
from slipstream.lab.tune_space import NAMES, Candidate
from slipstream.scheduler.cost_table import CostTable


class Subject(Protocol):
    """A workload that can be run under any candidate. Sent to other processes, so it pickles.

    Attributes:
        title: for reports. start: what the user has. cases: names of the workloads, each run on its own.
        most_at_once: requests that are ever there together.
        known_drafts: K up to which acceptance is known; 0 without a drafter.
        measured_throughput: what was measured of the start; None where nothing was.
    """

    @property
    def title(self) -> str: ...
    @property
    def start(self) -> Candidate: ...
    @property
    def cases(self) -> tuple[str, ...]: ...
    @property
    def most_at_once(self) -> int: ...
    @property
    def known_drafts(self) -> int: ...
    @property
    def measured_throughput(self) -> float | None: ...

    def config(self, candidate: Candidate, case: int) -> SchedulerConfig:
        """Every number of its scheduler. Raises SettingError for a candidate that cannot work."""
        ...

    def run(self, candidate: Candidate, case: int) -> BenchResult:
        """Run one workload; deterministic."""
        ...

    def flags(self, candidate: Candidate) -> list[str]:
        """The candidate as flags, shell-quoted where they need it."""
        ...

    def notes(self, candidate: Candidate) -> list[str]:
        """What the figures of a candidate rest on, each a sentence."""
        ...


@dataclass(frozen=True, slots=True)
class ScenarioSubject:
    """A scenario with one variant; see `scenario_subject`."""

    scenario: Scenario
    start: Candidate

    @property
    def title(self) -> str:
        return self.scenario.title

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(workload.name for workload in self.scenario.workloads)

    @property
    def most_at_once(self) -> int:
        return max(
            min(len(workload.requests), workload.arrivals.max_concurrency or len(workload.requests))
            for workload in self.scenario.workloads
        )

    @property
    def known_drafts(self) -> int:
        depth = max(len(one.chances) for one in self.scenario.acceptance.classes)
        return max(depth, self.start.num_speculative_tokens) if depth == 1 else depth

    @property
    def measured_throughput(self) -> float | None:
        return None

    def _variant(self, candidate: Candidate) -> Variant:
        (variant,) = self.scenario.variants
        settings = {name: getattr(candidate, name) for name in NAMES}
        if candidate.weighs_costs and self.scenario.settings_of(variant)["cost_table"] == NO_COSTS:
            settings["cost_table"] = MACHINE_COSTS
        return dataclasses.replace(variant, settings=settings)

    def config(self, candidate: Candidate, case: int) -> SchedulerConfig:
        """See Subject."""
        return self.scenario.config_of(self.scenario.workloads[case], self._variant(candidate))

    def run(self, candidate: Candidate, case: int) -> BenchResult:
        """See Subject."""
        return run_case(self.scenario, self.scenario.workloads[case], self._variant(candidate)).result

    def flags(self, candidate: Candidate) -> list[str]:
        """See Subject."""
        flat = self.scenario.settings_of(self._variant(candidate))
        speculative = {"method": flat["layout"], "num_speculative_tokens": candidate.num_speculative_tokens}
        if flat.get("draft_max_model_len") is not None:
            speculative["draft_max_model_len"] = flat["draft_max_model_len"]
        costs = None if flat["cost_table"] == NO_COSTS else flat["cost_table"]
        return flags_of(candidate, speculative, PROFILE_COSTS if costs == MACHINE_COSTS else costs)

    def notes(self, candidate: Candidate) -> list[str]:
        """See Subject."""
        scenario = self.scenario
        (variant,) = scenario.variants
        # Workloads may have fitted figures of their own; what is told apart here is the same for all of them.
        table = scenario.machine.build()
        notes = [
            f"Steps cost what the machine table {scenario.machine.in_words()} says ({table.provenance.source}).",
            f"Drafts are accepted by the scenario's model: {scenario.acceptance.in_words()}.",
            *rows_note(table, candidate),
        ]
        fit = scenario.fit
        if fit is not None and any(name in fit.values for name in self.cases):
            values = ", ".join(f"{fit.values[name]:g}" for name in self.cases if name in fit.values)
            notes.append(f"Its {fit.parameter} is not known, but fitted on published figures: {values}.")
        known, most = self.known_drafts, candidate.num_speculative_tokens
        if all(len(one.chances) == 1 for one in scenario.acceptance.classes):
            notes.append(
                "That model gives drafts of every depth one chance, whatever K is"
                + (f"; beyond the scenario's K = {known} that is extrapolated." if most > known else ".")
            )
        elif most > known:
            notes.append(
                f"K = {most} is extrapolated: drafts past the {known} known depths take the last one's chance."
            )
        if most != self.start.num_speculative_tokens:
            notes.append("A drafter that was trained for another K may not make as many drafts, or as good ones.")
        if scenario.settings_of(variant).get("num_kv_blocks") is None:
            tokens, own = (self._kv_tokens(one) for one in (candidate, self.start))
            if tokens > own:
                notes.append(
                    f"KV memory is not limited in this scenario: these settings may hold {tokens} tokens of it, the "
                    f"starting ones {own}. --set num_kv_blocks=N limits it."
                )
        return notes

    def _kv_tokens(self, candidate: Candidate) -> int:
        configs = [self.config(candidate, case) for case in range(len(self.cases))]
        return max(config.num_kv_blocks * config.block_size for config in configs)


def scenario_subject(scenario: Scenario, variant: str | None = None, workload: str | None = None) -> ScenarioSubject:
    """A scenario, to be tuned from one of its variants on all of its workloads, or one.

    Args:
        workload: its name, or its place in the file counted from 1.

    Raises:
        SettingError: a name that is not there, or none where there are several variants.
    """
    if variant is None:
        if len(scenario.variants) > 1:
            names = ", ".join(repr(one.name) for one in scenario.variants)
            raise SettingError(f"{scenario.name} has several variants, {names}; say with --variant where to start")
        variant = scenario.variants[0].name
    scenario = scenario.only(variant)
    if workload is not None:
        named = [one for place, one in enumerate(scenario.workloads, 1) if workload in (one.name, str(place))]
        if not named:
            listed = "; ".join(f"{place}: {one.name}" for place, one in enumerate(scenario.workloads, 1))
            raise SettingError(f"--workload {workload!r} is not in {scenario.name}; it has {listed}")
        scenario = dataclasses.replace(scenario, workloads=(named[0],))
    (only,) = scenario.variants
    config = scenario.config_of(scenario.workloads[0], only)
    return ScenarioSubject(scenario, start_of(config, has_costs=scenario.settings_of(only)["cost_table"] != NO_COSTS))


def start_of(config: SchedulerConfig, *, has_costs: bool) -> Candidate:
    """What a scheduler's settings come to: without a cost table they mix and verify all, whatever they say."""
    return Candidate(
        config.num_speculative_tokens,
        config.max_num_batched_tokens,
        config.max_num_seqs,
        config.composition if has_costs else "mix",
        config.verification if has_costs else "fixed",
    ).plain()


def flags_of(candidate: Candidate, speculative: Mapping[str, Any], cost_table: str | None) -> list[str]:
    """A candidate as flags, `speculative` being its config; rules that weigh costs need a table."""
    config = f"'{json.dumps(dict(speculative))}'" if candidate.num_speculative_tokens else "none"
    flags = [
        f"--max-num-batched-tokens {candidate.max_num_batched_tokens}",
        f"--max-num-seqs {candidate.max_num_seqs}",
        f"--composition {candidate.composition}",
        f"--verification {candidate.verification}",
        f"--speculative-config {config}",
    ]
    if candidate.weighs_costs:
        flags.append(f"--cost-table {cost_table or PROFILE_COSTS}")
    return flags


def rows_note(table: CostTable, candidate: Candidate) -> list[str]:
    """That a table knows no steps as large as these; empty where it does."""
    most = max(max(grid.rows) for grid in table.target.values())
    if candidate.max_num_batched_tokens <= most:
        return []
    return [f"The table ends at {most:.0f} rows; what larger steps cost is extrapolated along its last piece."]
