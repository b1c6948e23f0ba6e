"""What clients may send: request bodies of the two generation endpoints, checked strictly, nothing ignored."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from slipstream.request import RequestError, SamplingParams
from slipstream.server.fields import (
    MAX_CONTENT_PARTS,
    MAX_MESSAGES,
    ClosedObject,
    Int32,
    Int64,
    LogitBias,
    Priority,
    Prompt,
    Seed,
    Stop,
    StopTokenIds,
    shortened,
)

MAX_CHOICES = 1024
DEFAULT_COMPLETION_TOKENS = 16

# Parameters of the OpenAI API (or of vLLM's) that this server cannot serve yet, with the values that ask for nothing.
NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "bad_words": (None, []),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "guided_json": (None,),
    "guided_regex": (None,),
    "length_penalty": (None, 1.0),
    "metadata": (None, {}),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None,),
    "prediction": (None,),
    "prompt_logprobs": (None,),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "skip_special_tokens": (None, True),
    "store": (None, False),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "use_beam_search": (None, False),
    "verbosity": (None,),
    "web_search_options": (None,),
}


class StreamOptions(ClosedObject):
    """`stream_options`: usage in the last chunk, or in every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(BaseModel):
    """What both endpoints share; meanings are those of SamplingParams. `null` is the default everywhere.

    `priority`: lower is served first, from -100 to 100; a level is worth `priority_ageing_s` of waiting.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    n: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    seed: Seed | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    stop: Stop | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    logit_bias: LogitBias = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None

    def check_extras(self) -> None:
        """Refuse fields that are not known, and known ones that ask for what is not there."""
        for name, value in (self.model_extra or {}).items():
            if name not in NOT_SUPPORTED:
                name = shortened(name)
                near = difflib.get_close_matches(name, [*type(self).model_fields, *NOT_SUPPORTED], n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RequestError(f"unknown parameter {name!r}{hint}", name, "unknown_parameter")
            if value not in NOT_SUPPORTED[name]:
                raise RequestError(
                    f"{name!r} is not supported by this server; leave it out", name, "unsupported_parameter"
                )
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream to be true", "stream_options")

    def sampling(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The parameters for the engine. Raises RequestError for values outside their range."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "n",
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "seed",
                "min_tokens",
                "include_stop_str_in_output",
                "ignore_eos",
                "presence_penalty",
                "frequency_penalty",
                "repetition_penalty",
            )
        }
        if self.stop is not None:
            given["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias is not None:
            given["logit_bias"] = self.logit_bias
        known = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **known)


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    prompt: Prompt
    logprobs: Int64 | None = None


class TextPart(ClosedObject):
    """One part of a message's content; only text is served."""

    type: str
    text: str | None = None


class ChatMessage(ClosedObject):
    """One message. What an assistant message may hold beside its text is accepted empty, as clients send it back."""

    role: str
    content: str | Annotated[list[TextPart], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)] | None = None
    name: str | None = None
    refusal: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None
    tool_calls: list[Any] | None = Field(default=None, max_length=0)

    def text(self, index: int) -> str:
        """Content as one string. Raises RequestError for parts that are no text."""
        where = f"messages[{index}].content"
        if self.content is None:
            raise RequestError(f"{where} is missing", where)
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if part.type != "text" or part.text is None:
                raise RequestError(
                    f"{where}: only parts of type 'text' can be served, got {shortened(part.type)!r}", where
                )
        return "".join(part.text or "" for part in self.content)


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None

    def output_limit(self) -> int | None:
        """Most output tokens asked for; None is up to the model's limit."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise RequestError(f"max_tokens is {old} and max_completion_tokens {new}; send one of them", "max_tokens")
        return new if new is not None else old

    def num_logprobs(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        return None
