"""Tuning from a recording: its own workload, drafts' fates and step costs, under other settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from slipstream.bench.metrics import BenchResult, concurrency_of, summarize
from slipstream.config import SchedulerConfig, SettingError
from slipstream.lab.fitted_costs import fit_costs, mean_error
from slipstream.lab.modelled_run import Model, run_model
from slipstream.lab.recorded_steps import recorded_run, recorded_steps
from slipstream.lab.tune_space import NAMES, Candidate
from slipstream.lab.tune_subject import flags_of, rows_note, start_of
from slipstream.lab.what_if import changed, last_costs, running_by_step
from slipstream.scheduler.cost_table import CostTable
from slipstream.simulation.recorded_requests import RecordedPart, recorded_parts
from slipstream.simulation.recording import Header, Recording
from slipstream.simulation.trace_acceptance import TraceAcceptance

_ANY_LENGTH = 1.0  # forced acceptance has no say: drafts fare as the recording saw them


@dataclass(frozen=True, slots=True)
class RecordingSubject:
    """See Subject, and `recording_subject`.

    Attributes:
        header: of the recording. machine: what steps cost. costs: what the run decided by, None without a table.
        recorded: what was measured. error: of the machine over the recorded steps, as a share of the mean step.
    """

    header: Header
    parts: tuple[RecordedPart, ...]
    machine: CostTable
    costs: CostTable | None
    recorded: BenchResult
    error: float
    start: Candidate

    @property
    def title(self) -> str:
        return f"{self.header.model}, recorded {self.header.date}"

    @property
    def cases(self) -> tuple[str, ...]:
        return ("the recorded workload",)

    @property
    def most_at_once(self) -> int:
        peaks = []
        for part in self.parts:
            spans = [(r.added.arrival_time, r.end_time) for r in part.requests if r.end_time is not None]
            limit = None if part.mark is None else part.mark.max_concurrency
            peaks.append(min(len(part.requests), limit or max(concurrency_of(spans).peak, 1)))
        return max(peaks)

    @property
    def known_drafts(self) -> int:
        return self.header.config.num_speculative_tokens

    @property
    def measured_throughput(self) -> float | None:
        return self.recorded.output_throughput

    def config(self, candidate: Candidate, case: int) -> SchedulerConfig:
        """See Subject."""
        if candidate == self.start:
            return self.header.config
        assignments = [f"{name}={getattr(candidate, name)}" for name in NAMES if name != "num_speculative_tokens"]
        if candidate.num_speculative_tokens:
            assignments.append(f"num_speculative_tokens={candidate.num_speculative_tokens}")
        elif self.known_drafts:
            assignments.append("method=none")
        return changed(_without_forced_length(self.header), assignments).config

    def run(self, candidate: Candidate, case: int) -> BenchResult:
        """See Subject."""
        acceptance = TraceAcceptance([request for part in self.parts for request in part.requests])
        costs = self.costs or (self.machine if candidate.weighs_costs else None)
        model = Model(
            self.config(candidate, case), self.header.config, self.machine, costs, acceptance, self.header.commit_lag
        )
        return summarize(run_model(model, self.parts))

    def flags(self, candidate: Candidate) -> list[str]:
        """See Subject."""
        settings = self.header.settings
        assert settings is not None
        speculative: dict[str, Any] = {}
        if settings.speculative is not None:
            defaults = {f.name: f.default for f in dataclasses.fields(settings.speculative)}
            given = dataclasses.asdict(settings.speculative).items()
            speculative = {name: value for name, value in given if value != defaults[name]}
            speculative["num_speculative_tokens"] = candidate.num_speculative_tokens
            if "acceptance_length" in speculative:
                longest = candidate.num_speculative_tokens + 1
                speculative["acceptance_length"] = min(speculative["acceptance_length"], longest)
        return flags_of(candidate, speculative, None if self.costs is None else settings.scheduler.cost_table)

    def notes(self, candidate: Candidate) -> list[str]:
        """See Subject."""
        acceptance = TraceAcceptance([request for part in self.parts for request in part.requests])
        machine = self.machine.provenance
        own = "the run's own cost table" if self.costs is not None else f"a table {machine.source}"
        notes = [
            f"Steps cost what {own} says ({', '.join(machine.notes) or machine.machine}); over the recorded steps it "
            f"is off by {self.error:.0%} in the mean.",
        ]
        notes += rows_note(self.machine, candidate)
        if self.known_drafts:
            notes.append(
                "Drafts are accepted as they were at the same place of the same text, known for "
                f"{acceptance.share_known():.0%} of the positions; the rest is drawn at the recording's own rate for "
                "that depth."
            )
            depth = len(acceptance.rates.conditional)
            if candidate.num_speculative_tokens > depth:
                notes.append(
                    f"K = {candidate.num_speculative_tokens} is extrapolated: drafts past the {depth} recorded depths "
                    "take the last one's rate."
                )
        return notes


def recording_subject(recording: Recording) -> RecordingSubject:
    """A recording, to be tuned from its own settings.

    Raises:
        SettingError: it has no settings, no measured request, or too few steps to fit costs to.
    """
    header = recording.header
    if header.settings is None or header.facts is None:
        raise SettingError("the recording holds no settings that could be changed; it was not made by a command")
    parts = recorded_parts(recording)
    if not any(part.is_measured for part in parts):
        raise SettingError("the recording holds no measured request; there is nothing to tune for")
    steps = recorded_steps(recording)
    measured = [step for step in steps if step.is_measured]
    costs = last_costs(recording)
    machine = costs if costs is not None else fit_costs(measured, header.model)
    return RecordingSubject(
        header,
        tuple(parts),
        machine,
        costs,
        summarize(recorded_run(parts, steps, running_by_step(recording))),
        mean_error(machine, measured),
        start_of(header.config, has_costs=costs is not None),
    )


def _without_forced_length(header: Header) -> Header:
    settings = header.settings
    assert settings is not None
    speculative = settings.speculative
    if speculative is None or speculative.acceptance_length is None:
        return header
    speculative = dataclasses.replace(speculative, acceptance_length=_ANY_LENGTH)
    return dataclasses.replace(header, settings=dataclasses.replace(settings, speculative=speculative))
