"""LLM: the model in a Python program, without a server."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from rich.console import Console
from rich.progress import Progress

from slipstream.config import EMBEDDED_MODEL
from slipstream.engine.build import BuiltEngine, build_engine
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.messages import Submission
from slipstream.engine.output_processor import ChoiceDelta, PositionLogprobs
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.engine.tracker import RequestTracker, TrackedRequest
from slipstream.request import FinishReason, RequestError, SamplingParams

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]


class GenerationError(RuntimeError):
    """The engine failed while it worked on a request; nothing is wrong with the request."""


@dataclass(slots=True)
class Choice:
    """One finished answer.

    Attributes:
        logprobs: one entry per token when asked for.
        stop_reason: the stop string or token id that ended it; None for EOS and limits.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    metrics: RequestMetrics | None = None


@dataclass(slots=True)
class GenerationResult:
    """What one prompt gave: `sampling.n` choices."""

    prompt_token_ids: tuple[int, ...]
    choices: list[Choice]

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class RunningGeneration:
    """A prompt being answered. `metrics` (of the first choice) grow with `deltas`; closing those aborts the rest."""

    metrics: RequestMetrics
    deltas: Iterator[ChoiceDelta]

    def __iter__(self) -> Iterator[ChoiceDelta]:
        return self.deltas


class LLM:
    """Generates in the calling thread, many prompts at a time.

    >>> llm = LLM(max_num_seqs=8)
    >>> llm.generate("Once upon a time", SamplingParams(max_tokens=20, temperature=0)).pop().text
    """

    def __init__(
        self, model: str = EMBEDDED_MODEL, *, seed: int | None = None, progress: bool = False, **settings: Any
    ) -> None:
        """Load a model.

        Args:
            model: the embedded model's name, a `.gguf` file, or a Hugging Face directory.
            seed: makes the seeds of unseeded requests repeatable.
            progress: show bars while fetching and loading.
            settings: by name, as the flags without their dashes: `max_num_seqs=8`, `speculative_config={…}`.

        Raises:
            SettingError: a setting that cannot work. ModelLoadError: the model cannot be used.
        """
        self._use(build_engine(settings_from_flat({"model": model, **settings}), progress=progress), seed)

    @classmethod
    def from_engine(cls, built: BuiltEngine, *, seed: int | None = None) -> LLM:
        """Around an engine that exists."""
        llm = cls.__new__(cls)
        llm._use(built, seed)
        return llm

    def _use(self, built: BuiltEngine, seed: int | None) -> None:
        self.built = built
        self._seeds = random.Random(seed)
        self._numbers = count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[GenerationResult]:
        """Continue prompts, given as text or token ids; results in the order of the prompts.

        Args:
            sampling_params: for all prompts, or one for each; the defaults when None.
            progress: show a bar of finished prompts.

        Raises:
            RequestError: a prompt or parameter that cannot be served; then none is.
            GenerationError: the engine failed.
        """
        listed = _listed(prompts)
        sampling = _one_each(sampling_params, len(listed))
        tokenizer = self.built.source.tokenizer
        ids = [tuple(tokenizer.encode(item) if isinstance(item, str) else item) for item in listed]
        return self._run(ids, sampling, progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[GenerationResult]:
        """Answer conversations, each a list of `{"role": …, "content": …}`. As `generate` otherwise."""
        ids = [self.encode_chat(conversation) for conversation in _conversations(messages)]
        return self._run(ids, _one_each(sampling_params, len(ids)), progress)

    def start(self, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> RunningGeneration:
        """Begin with one prompt; iterate over what comes back for deltas as they are made."""
        tracker = RequestTracker(self.built.vocabulary)
        tracked = self._submit(tracker, tuple(prompt_token_ids), sampling)
        return RunningGeneration(tracked.metrics[0], (delta for _, delta in self._deltas(tracker, [tracked])))

    def encode_chat(self, messages: Conversation) -> tuple[int, ...]:
        """A conversation as token ids, up to the opening of the assistant's turn."""
        template = self.built.source.chat_template
        if template is None:
            raise RequestError(f"the model {self.built.served_name!r} has no chat template; use generate", "messages")
        return tuple(self.built.source.tokenizer.encode(template.render(messages), add_special_tokens=False))

    def _run(
        self, prompts: Sequence[tuple[int, ...]], sampling: Sequence[SamplingParams], progress: bool
    ) -> list[GenerationResult]:
        tracker = RequestTracker(self.built.vocabulary)
        tracked: list[TrackedRequest] = []
        try:
            for prompt, parameters in zip(prompts, sampling, strict=True):
                tracked.append(self._submit(tracker, prompt, parameters))
        except RequestError:
            for request in tracked:
                self.built.engine.abort(request.submission.request_id)
            raise
        results = {
            request.submission.request_id: GenerationResult(
                request.submission.prompt_token_ids,
                [Choice(index, metrics=metrics) for index, metrics in enumerate(request.metrics)],
            )
            for request in tracked
        }
        with Progress(console=Console(stderr=True), disable=not progress) as bar:
            task = bar.add_task("Generating", total=sum(len(result.choices) for result in results.values()))
            for request_id, delta in self._deltas(tracker, tracked):
                if delta.finish_reason is FinishReason.ERROR:
                    raise GenerationError(delta.error or "the engine failed")
                _extend(results[request_id].choices[delta.choice_index], delta)
                bar.advance(task, delta.finish_reason is not None)
        return list(results.values())

    def _submit(self, tracker: RequestTracker, prompt: tuple[int, ...], sampling: SamplingParams) -> TrackedRequest:
        seed = sampling.seed if sampling.seed is not None else self._seeds.getrandbits(63)
        engine = self.built.engine
        submission = Submission(f"llm-{next(self._numbers)}", prompt, sampling, seed, arrival_time=engine.clock())
        engine.add_request(submission)
        return tracker.add(submission)

    def _deltas(self, tracker: RequestTracker, tracked: Sequence[TrackedRequest]) -> Iterator[tuple[str, ChoiceDelta]]:
        engine = self.built.engine
        try:
            while len(tracker):
                report = engine.step()
                yield from tracker.read(report, engine.clock())
        finally:
            for request in tracked:
                engine.abort(request.submission.request_id)


def _extend(choice: Choice, delta: ChoiceDelta) -> None:
    choice.text += delta.text
    choice.token_ids += delta.token_ids
    if delta.logprobs is not None:
        choice.logprobs = (choice.logprobs or []) + delta.logprobs
    if delta.finish_reason is not None:
        choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [[item for item in prompts if isinstance(item, int)]]
    return [item for item in prompts if not isinstance(item, int)]


def _conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    if messages and isinstance(messages[0], Mapping):
        return [cast(Conversation, messages)]
    return list(cast(Sequence[Conversation], messages))


def _one_each(given: SamplingParams | Sequence[SamplingParams] | None, number: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * number
    if len(given) != number:
        raise RequestError(f"{number} prompts need {number} sampling_params, or one for all; got {len(given)}")
    return list(given)
