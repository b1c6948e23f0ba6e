"""Searches settings with Optuna: a subject, a space, limits and a seed give every candidate tried and the best one."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from slipstream.bench.metrics import BenchResult
from slipstream.config import SettingError
from slipstream.lab.processes import QuietPool
from slipstream.lab.tune_limits import Limit
from slipstream.lab.tune_result import Refusal, Trial, Tuning, best_of
from slipstream.lab.tune_space import NAMES, Candidate, Space
from slipstream.lab.tune_subject import Subject

if TYPE_CHECKING:
    import optuna

BATCH = 4
"""Candidates drawn before any of them is judged. Fixed, so that what is found does not depend on the cores."""

_EXPLORED = 0.6  # of the trials; the rest looks around the best one first
_VAIN_ASKS = 64  # draws in a row that are known already
_FOREVER_MS = 1e9
_CANNOT_WORK = 10.0  # as a constraint: worse than any limit missed by less


def tune(
    subject: Subject,
    space: Space,
    limits: Sequence[Limit],
    *,
    num_trials: int,
    seed: int = 0,
    workers: int = 1,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Tuning:
    """Try `num_trials` candidates, the start being the first; all of the space, where it is no larger.

    The result does not depend on `workers`.

    Raises:
        SettingError: a limit on something that these workloads do not have.
    """
    with _Runs(subject, tuple(limits), workers, on_trial) as runs:
        runs.run([subject.start])
        everything: dict[Candidate, None] = {}
        if space.size <= 16 * num_trials:
            everything = dict.fromkeys(candidate for candidate in space.all() if runs.works(candidate))
        if everything and len(everything.keys() - runs.trials.keys()) < num_trials:
            runs.run([candidate for candidate in everything if candidate not in runs.trials])
        else:
            _Search(runs, space, num_trials, seed).run()
        is_exhaustive = bool(everything) and everything.keys() <= runs.trials.keys() | runs.refused.keys()
        refusals = tuple(Refusal(*item) for item in runs.refused.items())
        return Tuning(runs.limits, space, tuple(runs.trials.values()), refusals, is_exhaustive)


@dataclass(slots=True)
class _Runs:
    """Runs candidates, each once."""

    subject: Subject
    limits: tuple[Limit, ...]
    workers: int
    on_trial: Callable[[Trial], None]
    trials: dict[Candidate, Trial] = field(default_factory=dict)
    refused: dict[Candidate, str] = field(default_factory=dict)
    pool: QuietPool | None = None

    def __enter__(self) -> _Runs:
        if self.workers > 1:
            self.pool = QuietPool(self.workers)
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def works(self, candidate: Candidate) -> bool:
        """Whether the settings' own checks take it."""
        if candidate in self.refused:
            return False
        try:
            for case in range(len(self.subject.cases)):
                self.subject.config(candidate, case)
        except SettingError as error:
            self.refused[candidate] = str(error)
            return False
        return True

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Run all, in order, on all workers."""
        cases = range(len(self.subject.cases))
        work = list(itertools.product(candidates, cases))
        results: Iterator[BenchResult]
        if self.pool is None:
            results = itertools.starmap(self.subject.run, work)
        else:
            results = self.pool.map(self.subject.run, *zip(*work, strict=True)) if work else iter(())
        for candidate in candidates:
            self._note(candidate, tuple(itertools.islice(results, len(cases))))

    def _note(self, candidate: Candidate, results: tuple[BenchResult, ...]) -> None:
        failed = sum(result.failed for result in results)
        if self.trials:
            start = next(iter(self.trials.values()))
            more = failed - sum(result.failed for result in start.results)
            if more > 0:
                self.refused[candidate] = f"{more} requests fail that the starting settings serve"
                return
        else:
            self._check(results)
        trial = Trial(candidate, results)
        misses = tuple(limit.miss(trial.value(limit)) for limit in self.limits)
        trial = self.trials[candidate] = Trial(candidate, results, misses)
        self.on_trial(trial)

    def _check(self, results: tuple[BenchResult, ...]) -> None:
        """What is weighed and limited must be there."""
        for result, case in zip(results, self.subject.cases, strict=True):
            if result.tpot_ms is None or result.ttft_ms is None or not result.output_throughput:
                raise SettingError(
                    f"workload {case!r}: no request has a second token, so there is no TPOT to weigh against throughput"
                )
            for limit in self.limits:
                if limit.value(result) is None:
                    raise SettingError(f"workload {case!r} has no {limit.label}, so {limit.flag} limits nothing")


class _Search:
    """Optuna proposes (TPE, throughput against TPOT, limits as constraints); around the best, neighbours are tried."""

    def __init__(self, runs: _Runs, space: Space, num_trials: int, seed: int) -> None:
        self._runs, self._space, self._num_trials = runs, space, num_trials
        with _quiet() as optuna:
            # Constant liar: candidates of a batch keep their distance.
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
            self._study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
            self._distributions = {
                name: optuna.distributions.CategoricalDistribution(range(len(values)))
                if isinstance(values[0], str)
                else optuna.distributions.IntDistribution(0, len(values) - 1)
                for name, values in space.values.items()
            }

    def run(self) -> None:
        """Until so many were tried, or nothing new can be found."""
        runs = self._runs
        self._tell_start()
        while (left := self._num_trials - len(runs.trials)) > 0:
            num_before = len(runs.trials) + len(runs.refused)
            if len(runs.trials) >= self._num_trials * _EXPLORED:
                self._enqueue_neighbours(left)
            self._batch(min(BATCH, left))
            if len(runs.trials) + len(runs.refused) == num_before:
                return

    def _tell_start(self) -> None:
        places = self._space.places(self._runs.subject.start)
        if places is not None:
            self._study.enqueue_trial(places)

    def _enqueue_neighbours(self, left: int) -> None:
        runs = self._runs
        best = best_of(list(runs.trials.values()))
        new = dict.fromkeys(c for c in self._space.neighbours(best.candidate) if c not in runs.trials and runs.works(c))
        for candidate in itertools.islice(new, min(BATCH, left)):
            places = self._space.places(candidate)
            if places is not None:
                self._study.enqueue_trial(places)

    def _batch(self, size: int) -> None:
        """Ask for candidates until enough are new, run those, and tell what came out."""
        asked: list[tuple[optuna.Trial, Candidate]] = []
        new: dict[Candidate, None] = {}
        with _quiet():
            for _ in range(_VAIN_ASKS):
                trial = self._study.ask(self._distributions)
                candidate = self._space.candidate({name: trial.params[name] for name in NAMES})
                if candidate in self._runs.trials or not self._runs.works(candidate):
                    self._tell(trial, candidate)
                    continue
                asked.append((trial, candidate))
                new[candidate] = None
                if len(new) == size:
                    break
            self._runs.run(list(new))
            for trial, candidate in asked:
                self._tell(trial, candidate)

    def _tell(self, trial: optuna.Trial, candidate: Candidate) -> None:
        known = self._runs.trials.get(candidate)
        if known is None:
            trial.set_constraint("works", _CANNOT_WORK)
            self._study.tell(trial, (0.0, _FOREVER_MS))
            return
        trial.set_constraint("works", 0.0)
        for limit, miss in zip(self._runs.limits, known.misses, strict=True):
            trial.set_constraint(limit.flag, miss)
        self._study.tell(trial, (known.throughput, known.tpot_ms))


@contextmanager
def _quiet() -> Iterator[ModuleType]:
    """Optuna without its log and without warnings that some of its parts are young."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(level)
