"""What crosses the line between a front (HTTP, LLM) and the engine: plain data that could also be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.request import RequestOutput, SamplingParams


@dataclass(frozen=True, slots=True)
class Submission:
    """One prompt to answer `sampling.n` times.

    Attributes:
        request_id: unique while the engine lives.
        prompt_token_ids: shape [T], T >= 1.
        seed: keys every random draw; drawn by the front when the user gave none.
        priority: lower is served first.
        arrival_time: seconds on the engine's clock.
        cache_salt: requests share prefix-cache blocks only with the same salt.
        max_draft_tokens: drafts per step at most; None for as many as the server makes, 0 for none.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str = ""
    max_draft_tokens: int | None = None

    def choice_id(self, choice_index: int) -> str:
        """Id of one of its choices inside the engine."""
        return f"{self.request_id}#{choice_index}"

    def choice_ids(self) -> list[str]:
        return [self.choice_id(index) for index in range(self.sampling.n)]


@dataclass(frozen=True, slots=True)
class Abort:
    """Nobody wants the answer any more."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the engine loop after the current step."""


Message = Submission | Abort | Shutdown


@dataclass(frozen=True, slots=True)
class Accepted:
    """The submission waits or runs."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The submission can never be served; the fields are RequestError's."""

    request_id: str
    message: str
    parameter: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine stopped for good; every unfinished request has failed."""

    message: str


@dataclass(slots=True)
class StepReport:
    """What one engine step gave.

    Attributes:
        outputs: new tokens and endings, by choice id.
        first_scheduled: (choice id, seconds on the engine's clock) of choices that ran for the first time.
        num_tokens: target rows of the step, 0 when nothing ran.
        duration_s: wall time of the step.
        idle: nothing ran and nothing was committed.
    """

    outputs: list[RequestOutput]
    first_scheduled: list[tuple[str, float]] = field(default_factory=list)
    num_tokens: int = 0
    duration_s: float = 0.0
    idle: bool = False


Event = Accepted | Rejected | EngineDied | StepReport
