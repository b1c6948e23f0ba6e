"""What clients may send: request bodies of the two generation endpoints, checked strictly, nothing ignored."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from slipstream.request import RequestError, SamplingParams
from slipstream.server.errors import ApiError
from slipstream.server.sse import ClientGoneError

MAX_BODY_BYTES = 8 << 20
MAX_PROMPTS = 256
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

_STRICT = ConfigDict(extra="allow", strict=True)
_Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]


class StreamOptions(BaseModel):
    """`stream_options`: usage in the last chunk, or in every chunk."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(BaseModel):
    """What both endpoints share; meanings are those of SamplingParams. `null` is the default everywhere."""

    model_config = _STRICT

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: _Int32 | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: list[_Int32] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: _Int32 | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None

    def check_extras(self) -> None:
        """Refuse fields that are not known, and known ones that ask for what is not there."""
        for name, value in (self.model_extra or {}).items():
            if name not in NOT_SUPPORTED:
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
        given = {
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
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        known = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(max_tokens=max_tokens, logprobs=logprobs, **known)


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None


class TextPart(BaseModel):
    """One part of a message's content; only text is served."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """One message. What an assistant message may hold beside its text is accepted empty, as clients send it back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str | list[TextPart] | None = None
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
                raise RequestError(f"{where}: only parts of type 'text' can be served, got {part.type!r}", where)
        return "".join(part.text or "" for part in self.content)


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

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


RequestBody = TypeVar("RequestBody", bound=GenerationRequest)


async def read_request(request: Request, kind: type[RequestBody]) -> RequestBody:
    """Read and check a JSON body of at most MAX_BODY_BYTES. Raises ApiError, RequestError or ClientGoneError."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
    except ClientDisconnect:
        raise ClientGoneError from None
    try:
        parsed = kind.model_validate_json(bytes(body))
    except ValidationError as error:
        raise _readable(error) from None
    parsed.check_extras()
    return parsed


def _token_id(key: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", key):
        raise RequestError(f"logit_bias must map token ids to numbers, got the key {key[:40]!r}", "logit_bias")
    return int(key)


def _readable(error: ValidationError) -> RequestError:
    """The first problem, in words that name the field."""
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {first['msg']}", None, "invalid_json")
    field = str(first["loc"][0]) if first["loc"] else None
    if field is None:
        return RequestError(f"the body must be a JSON object: {first['msg']}", None, "invalid_json")
    if first["type"] == "missing":
        return RequestError(f"{field!r} is required", field, "missing_parameter")
    names = [part for part in first["loc"] if isinstance(part, int) or re.fullmatch(r"\w+", part)]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
    unique = dict.fromkeys(problem["msg"] for problem in problems if problem["loc"][0] == field)
    return RequestError(f"{where}: {'; or '.join(list(unique)[:3])}", field, "invalid_value")
