"""What a user asks for (SamplingParams), what the engine tracks (Request), what it answers (RequestOutput)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 1024
MAX_WHOLE_NUMBER = (1 << 63) - 1


class RequestError(ValueError):
    """A request that cannot be served as asked; becomes an HTTP 4xx with an OpenAI-shaped body.

    Attributes:
        message: what was wrong, the value, and the nearest value that works.
        parameter: the request field at fault, or None.
        code: a short machine-readable word, or None.
    """

    def __init__(self, message: str, parameter: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter
        self.code = code


class FinishReason(StrEnum):
    """Why a request ended; the values are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """Ends a model's reasoning after so many tokens, by forcing the marker that closes it.

    Attributes:
        max_tokens: reasoning tokens at most, markers not counted.
        start_ids, end_ids: the markers.
        is_open: the prompt ends inside of the reasoning, so it begins with the first output token.
    """

    max_tokens: int
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool

    def forced_token(self, output: Sequence[int]) -> int | None:
        """The only token that may follow `output` (all output tokens so far); None where any may."""
        start = 0 if self.is_open else _end_of(self.start_ids, output)
        if start is None or len(output) - start < self.max_tokens:
            return None
        if _end_of(self.end_ids, output[start:]) is not None:
            return None
        position = len(output) - start - self.max_tokens
        return self.end_ids[position] if position < len(self.end_ids) else None


class ConstraintKind(StrEnum):
    """How the text of a constraint is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The reasoning that may stand before a constrained answer, and is free.

    Attributes:
        start_ids, end_ids: the markers.
        is_open: the prompt ends inside of the reasoning; otherwise the model may open it with its first tokens.
    """

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool

    def document_start(self, output: Sequence[int]) -> int | None:
        """Where the answer begins in `output` (all output tokens); None inside of the reasoning."""
        first = 0
        if not self.is_open:
            first = len(self.start_ids)
            if tuple(output[:first]) != self.start_ids:
                return 0
        end = _end_of(self.end_ids, output[first:])
        return None if end is None else first + end

    def next_of_start(self, output: Sequence[int]) -> int | None:
        """The token by which the reasoning may (still) be opened after `output`; None where it may not."""
        position = len(output)
        if self.is_open or position >= len(self.start_ids) or tuple(output) != self.start_ids[:position]:
            return None
        return self.start_ids[position]


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """What an output must be. EOS and stop ids can be sampled only where it is complete, so `stop` means a complete
    document and `length` the beginning of one.

    Attributes:
        kind, text: a JSON schema; a regular expression of the whole text; a JSON list of the only texts; or a grammar,
            Lark or GBNF.
        parameter: the request field that asked for it, which errors name.
        reasoning: what may stand before it.
    """

    kind: ConstraintKind
    text: str
    parameter: str = field(default="structured_outputs", compare=False)
    reasoning: ReasoningMarkers | None = None


def _end_of(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Where the first occurrence of `part` in `whole` ends."""
    size = len(part)
    for end in range(size, len(whole) + 1):
        if whole[end - 1] == part[-1] and tuple(whole[end - size : end]) == tuple(part):
            return end
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. Names and meanings follow vLLM and the OpenAI API.

    Attributes:
        n: number of choices; each is a request of its own with its own choice index.
        temperature: 0 is greedy.
        top_p: keep the smallest set of tokens whose probability reaches this, in (0, 1].
        top_k: keep this many tokens; 0 (or -1) keeps all.
        min_p: drop tokens less likely than min_p times the likeliest, in [0, 1].
        seed: any integer; None draws one on arrival, which the engine records.
        max_tokens: output tokens at most; None means up to the model's limit.
        min_tokens: EOS and stop token ids cannot be sampled, and stop strings are not looked for, before this many.
        stop: strings (or one) that end the text; they are not part of it unless `include_stop_str_in_output`.
        stop_token_ids: token ids that end the output like EOS.
        ignore_eos: go on past EOS.
        logit_bias: token id -> number added to its logit.
        presence_penalty: subtracted once from logits of tokens in the output, in [-2, 2].
        frequency_penalty: subtracted per occurrence in the output, in [-2, 2].
        repetition_penalty: divides positive (multiplies negative) logits of tokens in prompt or output, in
            [0.01, 100].
        logprobs: number of alternatives to report beside each sampled token's log probability; None reports nothing.
        prompt_logprobs: the same for the prompt's tokens from the second on. The prompt is then computed whole, the
            prefix cache is not read.
        allowed_token_ids: the only tokens that may be sampled; None allows all.
        bad_words_token_ids: sequences that are never completed.
        thinking: bound of the reasoning.
        constraint: what the output must be; None lets it be anything.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    thinking: ThinkingBudget | None = None
    constraint: OutputConstraint | None = None

    def __post_init__(self) -> None:
        """`stop` may be one string, and both stop lists any sequence; they become tuples. Raises RequestError."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, kind in (("stop", str), ("stop_token_ids", int)):
            object.__setattr__(self, name, _checked_tuple(name, getattr(self, name), kind))
        for name in ("include_stop_str_in_output", "ignore_eos"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {shown(getattr(self, name))}", name)
        if self.seed is not None:
            check_whole("seed", self.seed)
        _check_whole_range("n", self.n, 1, 128)
        _check_whole_range("top_k", self.top_k, -1, MAX_WHOLE_NUMBER)
        _check_whole_range("min_tokens", self.min_tokens, 0, MAX_WHOLE_NUMBER)
        if self.max_tokens is not None:
            _check_whole_range("max_tokens", self.max_tokens, 1, MAX_WHOLE_NUMBER)
        for name in ("logprobs", "prompt_logprobs"):
            if (count := getattr(self, name)) is not None:
                _check_whole_range(name, count, 0, MAX_LOGPROBS)
        if self.allowed_token_ids is not None:
            allowed = _checked_tuple("allowed_token_ids", self.allowed_token_ids, int)
            if not allowed:
                raise RequestError("allowed_token_ids must name at least one token", "allowed_token_ids")
            object.__setattr__(self, "allowed_token_ids", allowed)
        words = _checked_tuple("bad_words_token_ids", self.bad_words_token_ids, tuple)
        if len(words) > MAX_BAD_WORDS or not all(words):
            raise RequestError(
                f"bad_words_token_ids takes at most {MAX_BAD_WORDS} words, none of them empty", "bad_words_token_ids"
            )
        if self.thinking is not None:
            if not isinstance(self.thinking, ThinkingBudget):
                raise RequestError(f"thinking must be a ThinkingBudget, got {shown(self.thinking)}", "thinking")
            _check_whole_range("thinking", self.thinking.max_tokens, 0, MAX_WHOLE_NUMBER)
        if self.constraint is not None and not isinstance(self.constraint, OutputConstraint):
            raise RequestError(f"constraint must be an OutputConstraint, got {shown(self.constraint)}", "constraint")
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p)
        if not 0.0 < self.top_p <= 1.0:
            raise RequestError(f"top_p must be in (0, 1], got {shown(self.top_p)}; 1 keeps every token", "top_p")
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        # Further out, a logit that it multiplies or divides could overflow.
        _check_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}", "min_tokens"
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop")
        if any(not text for text in self.stop):
            raise RequestError("stop must not contain an empty string", "stop")
        for text in self.stop:
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise RequestError(f"stop {shown(text)} holds half a surrogate pair and is no text", "stop")
        if self.stop and self.constraint is not None:
            raise RequestError(
                f"stop would cut what {self.constraint.parameter} asks to be complete; leave one of them out, or end "
                "by stop_token_ids, which are looked for where the output is complete",
                "stop",
            )
        self._check_logit_bias()

    def _check_logit_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias must map token ids to numbers, got {shown(self.logit_bias)}", "logit_bias")
        for token_id, bias in self.logit_bias.items():
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise RequestError(
                    f"logit_bias must map token ids to numbers, got the key {shown(token_id)}", "logit_bias"
                )
            _check_number(f"logit_bias of token {shown(token_id)}", bias, "logit_bias")
            if not -100.0 <= bias <= 100.0:
                raise RequestError(
                    f"logit_bias of token {shown(token_id)} must be between -100 and 100, got {shown(bias)}",
                    "logit_bias",
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


def shown(value: object) -> str:
    """A value as an error message quotes it: its repr, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write out whole numbers of thousands of digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:80] + "…"


def check_whole(name: str, value: object, parameter: str | None = None) -> None:
    """Refuse what is no int; True is none. The error names `parameter`, or `name` without one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, got {shown(value)}", parameter or name)


def _check_number(name: str, value: object, parameter: str | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {shown(value)}", parameter or name)


def _check_whole_range(name: str, value: int, low: int, high: int) -> None:
    check_whole(name, value)
    _check_range(name, value, low, high)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    _check_number(name, value)
    if not low <= value <= high:  # also refuses NaN
        nearest = low if not value > high else high
        raise RequestError(
            f"{name} must be between {low} and {high}, got {shown(value)}; the nearest is {nearest}", name
        )


def _checked_tuple(name: str, values: object, kind: type) -> tuple[object, ...]:
    what = {str: "strings", int: "token ids"}.get(kind, "tuples of token ids")
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise RequestError(f"{name} must be a list of {what}, got {shown(values)}", name)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, kind):
            raise RequestError(f"{name} must hold {what}, got {shown(value)}", name)
    return tuple(values)


@dataclass(slots=True)
class Logprobs:
    """Log probabilities at one output position, of the model's own distribution (before temperature and filters).

    Attributes:
        logprob: of the sampled token.
        rank: of the sampled token, 1 is the likeliest.
        top: (token id, log probability), likeliest first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """One choice of one user's request, as the scheduler tracks it. Only the scheduler changes it after creation.

    Positions are 0-based token indices. `token_ids` holds prompt and output; the newest one is the *anchor*, whose KV
    is not computed yet, so a decoding request has `num_computed_tokens == len(token_ids) - 1`.

    Attributes:
        request_id: unique while the engine lives.
        token_ids: prompt then output; the scheduler appends.
        num_prompt_tokens: length of the prompt.
        sampling: parameters; `max_total_tokens` and `stop_token_ids` below already hold what follows from them.
        seed, choice_index: with the output position they key every random draw (design 5).
        stop_token_ids: EOS (unless ignored) and the user's stop ids.
        max_total_tokens: prompt and output tokens at most; set by the scheduler on arrival.
        priority: lower is served first.
        arrival_time: seconds on the engine's clock.
        cache_salt: requests share prefix-cache blocks only with the same salt.
        max_draft_tokens: drafts per step at most; None for as many as the server makes, 0 for none.
        reads_prefix_cache: False where every prompt row must run, because something is reported of it.
        prompt_logprobs: of the prompt's tokens from the second on, as far as computed.
        num_computed_tokens: tokens whose KV is in `block_ids`, committed results only.
        num_cached_tokens: how many of the prompt's tokens the prefix cache gave at the first admission.
        epoch: grows at each preemption; a result of an older epoch is stale.
        in_flight_rows, in_flight_emits: target rows and emitting steps scheduled and not committed yet (lag 1).
        is_prefilling: known tokens are still to be planned; False from the chunk on that emits.
        block_ids: block table. block_hashes: chain hashes of its full blocks, as far as known.
        num_hashed_blocks: blocks of the table already offered to the prefix cache.
        num_planned_blocks: blocks of the table already named in a plan, so that the executor knows them.
        draft_handle, num_draft_tokens: the step whose draft pass made the drafts at hand, and how many (upper bound).
        draft_confidences: chance of each of those drafts given the ones before; None until committed, or when the
            drafter is silent.
    """

    __slots__ = (
        "arrival_time",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "choice_index",
        "draft_confidences",
        "draft_handle",
        "epoch",
        "finish_reason",
        "first_scheduled_time",
        "in_flight_emits",
        "in_flight_rows",
        "is_prefilling",
        "max_draft_tokens",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_draft_tokens",
        "num_hashed_blocks",
        "num_planned_blocks",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "prompt_logprobs",
        "queue_key",
        "reads_prefix_cache",
        "request_id",
        "sampling",
        "seed",
        "status",
        "stop_reason",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        seed: int = 0,
        choice_index: int = 0,
        eos_token_ids: Sequence[int] = (),
        priority: int = 0,
        arrival_time: float = 0.0,
        cache_salt: str = "",
        max_draft_tokens: int | None = None,
        reads_prefix_cache: bool = True,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.sampling = sampling
        self.seed = seed
        self.choice_index = choice_index
        self.stop_token_ids = frozenset(sampling.stop_token_ids) | (
            frozenset() if sampling.ignore_eos else frozenset(eos_token_ids)
        )
        self.priority = priority
        self.arrival_time = arrival_time
        self.cache_salt = cache_salt
        self.max_draft_tokens = max_draft_tokens
        self.reads_prefix_cache = reads_prefix_cache
        self.prompt_logprobs: list[Logprobs] = []
        self.max_total_tokens = 0
        self.queue_key: tuple[float, int] = (0.0, 0)

        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.epoch = 0
        self.in_flight_rows = 0
        self.in_flight_emits = 0
        self.is_prefilling = True
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_hashed_blocks = 0
        self.num_planned_blocks = 0
        self.draft_handle = -1
        self.num_draft_tokens = 0
        self.draft_confidences: Sequence[float] | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status}, prompt={self.num_prompt_tokens}, "
            f"output={self.num_output_tokens}, computed={self.num_computed_tokens})"
        )


@dataclass(slots=True)
class RequestOutput:
    """What one committed step gave one request.

    Attributes:
        new_token_ids: tokens committed in this step, in order; never past a stop.
        finish_reason: set on the last output.
        stop_reason: the token id or stop string that ended it; None for EOS and limits.
        num_verified: drafts the target checked in this step.
        num_accepted: how many of them were accepted.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        num_preemptions: how often the request lost its KV; on the last output.
        logprobs: one entry per new token, when asked for.
        error: what went wrong, when finish_reason is ERROR.
        num_drafted: drafts made at the end of this step, for the next one.
        num_admitted: drafts that the plan let this step verify; the drafter may have given fewer.
        prompt_logprobs: with the first output when asked for: one entry per prompt token from the second on.
        refused_draft_ids: verified drafts that were not accepted, in order, where the executor says which.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_verified: int = 0
    num_accepted: int = 0
    num_cached_tokens: int = 0
    logprobs: list[Logprobs] | None = None
    error: str | None = None
    num_drafted: int = 0
    num_admitted: int = 0
    prompt_logprobs: list[Logprobs] | None = None
    num_preemptions: int = 0
    refused_draft_ids: Sequence[int] = ()
