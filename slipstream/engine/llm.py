"""LLM: the model in a Python program, without a server."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from rich.console import Console
from rich.progress import Progress

from slipstream.config import AUTO_COSTS, EMBEDDED_MODEL
from slipstream.engine.build import BuiltEngine, build_engine
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.messages import Submission
from slipstream.engine.output_processor import ChoiceDelta, PositionLogprobs
from slipstream.engine.request_metrics import RequestMetrics
from slipstream.engine.shared_engine import GenerationError, RunningRequests, SharedEngine
from slipstream.request import FinishReason, RequestError, SamplingParams, check_whole, shown

__all__ = ["LLM", "Choice", "GenerationError", "GenerationResult", "RunningGeneration"]

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]


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


class RunningGeneration:
    """A prompt being answered; iterate over it for deltas. Other generations may run in between.

    It keeps its place in the engine until it has ended, is closed (`with` does it), or nobody refers to it any more.

    Attributes:
        metrics: of the first choice; they grow as the engine steps.
    """

    def __init__(self, requests: RunningRequests) -> None:
        self.metrics: RequestMetrics = requests.tracked[0].metrics[0]
        self._requests = requests

    def __iter__(self) -> Iterator[ChoiceDelta]:
        return self

    def __next__(self) -> ChoiceDelta:
        return next(self._requests)[1]

    def __enter__(self) -> RunningGeneration:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what is unfinished; deltas not fetched by now are lost."""
        self._requests.close()


class LLM:
    """Generates in the calling thread, many prompts at a time.

    >>> llm = LLM(max_num_seqs=8)
    >>> llm.generate("Once upon a time", SamplingParams(max_tokens=20, temperature=0)).pop().text
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = EMBEDDED_MODEL,
        *,
        seed: int | None = None,
        progress: bool = False,
        **settings: Any,
    ) -> None:
        """Load a model.

        Args:
            model: the embedded model's name, a `.gguf` file, or a Hugging Face directory.
            seed: makes the seeds of unseeded requests repeatable.
            progress: show bars while fetching and loading.
            settings: by name, as the flags without their dashes: `max_num_seqs=8`, `speculative_config={…}`. What ships
                for the model speculates unless `speculative_config=None`. What steps cost is measured at the first
                start with such settings, and kept (`cost_table`).

        Raises:
            SettingError: a setting that cannot work. ModelLoadError: the model cannot be used.
        """
        stated = {"model": os.fspath(model), "cost_table": AUTO_COSTS, **settings}
        self._use(build_engine(settings_from_flat(stated), progress=progress), seed)

    @classmethod
    def from_engine(cls, built: BuiltEngine, *, seed: int | None = None) -> LLM:
        """Around an engine that exists."""
        llm = cls.__new__(cls)
        llm._use(built, seed)
        return llm

    def _use(self, built: BuiltEngine, seed: int | None) -> None:
        self.built = built
        self._shared = SharedEngine(built.engine, built.vocabulary)
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
        ids = [self._ids_of(name, prompt) for name, prompt in _listed(prompts)]
        return self._run(ids, _one_each(sampling_params, len(ids)), progress)

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

    def start(self, prompt_token_ids: Sequence[int], sampling: SamplingParams | None = None) -> RunningGeneration:
        """Begin with one prompt; iterate over what comes back for deltas as they are made.

        Raises:
            RequestError: it cannot be served.
        """
        ids = _checked_ids("prompt_token_ids", prompt_token_ids)
        return RunningGeneration(self._shared.submit([self._submission(ids, *_one_each(sampling, 1))]))

    def encode(self, text: str) -> tuple[int, ...]:
        """A text as token ids. Raises RequestError when it is not one."""
        return self._encode("prompt", text)

    def encode_chat(self, messages: Conversation) -> tuple[int, ...]:
        """A conversation as token ids, up to the opening of the assistant's turn."""
        template = self.built.source.chat_template
        if template is None:
            raise RequestError(f"the model {self.built.served_name!r} has no chat template; use generate", "messages")
        return self._encode("messages", template.render(_checked_conversation(messages)), add_special_tokens=False)

    def _run(
        self, prompts: Sequence[tuple[int, ...]], sampling: Sequence[SamplingParams], progress: bool
    ) -> list[GenerationResult]:
        running = self._shared.submit([self._submission(*pair) for pair in zip(prompts, sampling, strict=True)])
        results = {
            request.submission.request_id: GenerationResult(
                request.submission.prompt_token_ids,
                [Choice(index, metrics=metrics) for index, metrics in enumerate(request.metrics)],
            )
            for request in running.tracked
        }
        console = Console(stderr=True)
        with closing(running), Progress(console=console, disable=not progress) as bar:
            task = bar.add_task("Generating", total=sum(len(result.choices) for result in results.values()))
            for request_id, delta in running:
                if delta.finish_reason is FinishReason.ERROR:
                    raise GenerationError(delta.error or "the engine failed")
                _extend(results[request_id].choices[delta.choice_index], delta)
                bar.advance(task, delta.finish_reason is not None)
        return list(results.values())

    def _submission(self, prompt: tuple[int, ...], sampling: SamplingParams) -> Submission:
        seed = sampling.seed if sampling.seed is not None else self._seeds.getrandbits(63)
        arrival_time = self.built.engine.clock()
        return Submission(f"llm-{next(self._numbers)}", prompt, sampling, seed, arrival_time=arrival_time)

    def _ids_of(self, name: str, prompt: object) -> tuple[int, ...]:
        return self._encode(name, prompt) if isinstance(prompt, str) else _checked_ids(name, prompt)

    def _encode(self, name: str, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"{name}: character {error.start} ({text[error.start]!r}) is half a surrogate pair and no text", name
            ) from None
        return tuple(self.built.source.tokenizer.encode(text, add_special_tokens=add_special_tokens))


def _extend(choice: Choice, delta: ChoiceDelta) -> None:
    choice.text += delta.text
    choice.token_ids += delta.token_ids
    if delta.logprobs is not None:
        choice.logprobs = (choice.logprobs or []) + delta.logprobs
    if delta.finish_reason is not None:
        choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason


def _listed(prompts: object) -> list[tuple[str, object]]:
    """Each prompt with what errors call it. A list that begins with a number is one prompt."""
    if isinstance(prompts, str):
        return [("prompts", prompts)]
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Sequence):
        raise RequestError(
            f"prompts must be text, a list of token ids, or a list of such, got {shown(prompts)}", "prompts"
        )
    if prompts and isinstance(prompts[0], int):
        return [("prompts", prompts)]
    return [(f"prompts[{index}]", prompt) for index, prompt in enumerate(prompts)]


def _checked_ids(name: str, prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, str | bytes | bytearray) or not isinstance(prompt, Sequence):
        raise RequestError(f"{name} must be text or a list of token ids, got {shown(prompt)}", name)
    for position, token_id in enumerate(prompt):
        check_whole(f"{name}[{position}]", token_id, name)
    return tuple(prompt)


def _conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list of messages, or of such lists, got {shown(messages)}", "messages")
    if messages and isinstance(messages[0], Mapping):
        return [cast(Conversation, messages)]
    return list(cast(Sequence[Conversation], messages))


def _checked_conversation(messages: object) -> Conversation:
    """Templates tend to skip what they do not know, and a message must not be lost."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(f"a conversation must be a list of at least one message, got {shown(messages)}", "messages")
    for index, message in enumerate(messages):
        whole = isinstance(message, Mapping) and isinstance(message.get("role"), str)
        if not whole or (message.get("content") is None and "tool_calls" not in message):
            raise RequestError(
                f'messages[{index}] must be {{"role": …, "content": …}}, got {shown(message)}', "messages"
            )
    return messages


def _one_each(given: object, number: int) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * number
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise RequestError(f"sampling_params must be SamplingParams or a list of them, got {shown(given)}")
    if len(given) != number:
        raise RequestError(f"{number} prompts need {number} sampling_params, or one for all; got {len(given)}")
    for index, item in enumerate(given):
        if not isinstance(item, SamplingParams):
            raise RequestError(f"sampling_params[{index}] must be SamplingParams, got {shown(item)}")
    return list(given)
