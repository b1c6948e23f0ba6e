"""Load over HTTP against any OpenAI-compatible server, with a record of when each piece of output came."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from slipstream.bench.arrivals import Arrivals
from slipstream.bench.dataset import Prompt
from slipstream.bench.records import Chunk, RequestRecord, RunRecord
from slipstream.bench.sse import EventDecoder
from slipstream.request import SamplingParams

REASONING_FIELDS = ("reasoning_content", "reasoning")


class TargetError(RuntimeError):
    """The server cannot be benchmarked at all: not there, or no model to ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is asked, and how.

    Attributes:
        base_url: with or without the `/v1` at its end.
        chat: `/v1/chat/completions`, else `/v1/completions`; prompts of token ids need the latter.
        timeout_s: longest silence before a request counts as failed.
        tells_sources: the server says of every chunk how many tokens it holds and which of them were drafted.
    """

    base_url: str
    model: str = ""
    chat: bool = True
    api_key: str | None = None
    timeout_s: float = 600.0
    tells_sources: bool = False

    @property
    def root(self) -> str:
        """The base URL without `/v1`."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    @property
    def url(self) -> str:
        return f"{self.root}/v1/{'chat/' if self.chat else ''}completions"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self, prompt: Prompt, sampling: SamplingParams) -> dict[str, Any]:
        """The request's JSON; parameters outside OpenAI's API are sent only where they are asked for."""
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if self.tells_sources:
            body["stream_options"]["include_token_sources"] = True
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.ignore_eos:
            body["ignore_eos"] = True
        if not self.chat:
            body["prompt"] = prompt.text if prompt.text is not None else list(prompt.token_ids or ())
        elif prompt.text is None:
            raise TargetError("prompts of token ids need the completions endpoint: add --endpoint completions")
        else:
            body["messages"] = [{"role": "user", "content": prompt.text}]
        return body


@dataclass(frozen=True, slots=True)
class HttpLoad:
    """Sends a workload and records the answers.

    Attributes:
        clock: seconds, never falling. sleep: waits that many of them. Tests put their own in.
        transport: None opens real connections.
        on_done: told of each finished request, for a progress bar.
    """

    target: Target
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    transport: httpx.AsyncBaseTransport | None = None
    on_done: Callable[[RequestRecord], None] = field(default=lambda record: None)

    def open_client(self) -> httpx.AsyncClient:
        """No limit on connections: the arrivals decide what is in flight."""
        return httpx.AsyncClient(
            transport=self.transport,
            headers=self.target.headers,
            timeout=httpx.Timeout(self.target.timeout_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def run(self, prompts: Sequence[tuple[Prompt, SamplingParams]], arrivals: Arrivals) -> RunRecord:
        """Send everything; a failed request becomes a record with its error, and the run goes on."""
        bodies = [self.target.body(prompt, sampling) for prompt, sampling in prompts]
        seats = asyncio.Semaphore(arrivals.max_concurrency or len(bodies) or 1)
        async with self.open_client() as client:
            start = self.clock()
            records = await asyncio.gather(
                *(
                    self._send_on_time(client, index, body, released, start, seats)
                    for index, (body, released) in enumerate(zip(bodies, arrivals.times, strict=True))
                )
            )
        sent = min((record.sent_time for record in records), default=0.0)
        ended = max((record.end_time for record in records), default=0.0)
        return RunRecord(list(records), ended - sent)

    async def _send_on_time(
        self,
        client: httpx.AsyncClient,
        index: int,
        body: dict[str, Any],
        released: float,
        start: float,
        seats: asyncio.Semaphore,
    ) -> RequestRecord:
        early = released - (self.clock() - start)
        if early > 0:
            await self.sleep(early)
        async with seats:
            record = RequestRecord(index, released, self.clock() - start)
            try:
                await self._stream(client, body, record, start)
                if not record.chunks and not record.num_output_tokens:
                    record.error = "no output"
            except (httpx.HTTPError, _ServerError) as error:
                record.error = str(error) or type(error).__name__
        self.on_done(record)
        return record

    async def _stream(
        self, client: httpx.AsyncClient, body: dict[str, Any], record: RequestRecord, start: float
    ) -> None:
        usage_seen = False
        decoder = EventDecoder()
        async with client.stream("POST", self.target.url, json=body) as response:
            if response.status_code != 200:
                raise _ServerError(f"HTTP {response.status_code}: {_error_message(await response.aread())}")
            async for read in response.aiter_bytes():
                now = self.clock() - start
                for number, event in enumerate(decoder.feed(read)):
                    usage_seen |= _take_event(event, now, number > 0, record)
            now = self.clock() - start
            for event in decoder.close():
                usage_seen |= _take_event(event, now, False, record)
        if not usage_seen:
            raise _ServerError(
                "the server sent no usage (stream_options.include_usage); its tokens cannot be counted, "
                "and chunks are not tokens"
            )
        if record.finish_reason in (None, "error", "abort"):
            raise _ServerError(f"the stream ended with finish_reason {record.finish_reason}")


class _ServerError(Exception):
    pass


def _error_message(body: bytes) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body[:200].decode(errors="replace")
    return _message_in(value)


def _message_in(value: Any) -> str:
    error = value.get("error", value) if isinstance(value, dict) else value
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _take_event(data: str, now: float, shares_read: bool, record: RequestRecord) -> bool:
    """Book one event; True when it carried the usage counts."""
    if data.strip() == "[DONE]":
        return False
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise _ServerError(f"an event is not JSON: {data[:100]!r}") from None
    try:
        return _book(event, now, shares_read, record)
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise _ServerError(f"an event has another shape than OpenAI's: {data[:100]!r}") from None


def _book(event: Any, now: float, shares_read: bool, record: RequestRecord) -> bool:
    if event.get("error"):
        raise _ServerError(_message_in(event))
    for choice in event.get("choices") or ():
        sources = choice.get("token_sources")
        if bool(sources) if sources is not None else _carries_output(choice):
            record.coalesced_chunks += shares_read and bool(record.chunks) and record.chunks[-1].time == now
            record.chunks.append(Chunk(now) if sources is None else Chunk(now, len(sources), sources.count("draft")))
        delta = choice.get("delta") or {}
        record.text += delta.get("content") or choice.get("text") or ""
        record.finish_reason = choice.get("finish_reason") or record.finish_reason
    usage = event.get("usage")
    if not usage:
        return False
    record.num_prompt_tokens = int(usage.get("prompt_tokens") or 0)
    record.num_output_tokens = int(usage.get("completion_tokens") or 0)
    return True


def _carries_output(choice: dict[str, Any]) -> bool:
    """Whether a chunk shows output of the model: content, reasoning, a tool call, or a token without text yet.

    The chunk that opens a chat (a role and no content) and the one that closes it (a finish reason only) do not.
    """
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text")) or (choice.get("text") == "" and not choice.get("finish_reason"))
    if delta.get("content") or delta.get("tool_calls") or any(delta.get(name) for name in REASONING_FIELDS):
        return True
    return delta.get("content") == "" and "role" not in delta and not choice.get("finish_reason")


async def tells_sources(load: HttpLoad) -> bool:
    """Whether the server can say where each chunk's tokens came from; only Slipstream can, and says who it is."""
    try:
        async with load.open_client() as client:
            models = (await client.get(f"{load.target.root}/v1/models", timeout=10.0)).json()["data"]
        return any(model["owned_by"] == "slipstream" for model in models)
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False  # what is wrong with it will be said when it is asked for more


async def first_model(load: HttpLoad) -> str:
    """The first model the server offers.

    Raises:
        TargetError: the server is not there or offers none.
    """
    url = f"{load.target.root}/v1/models"
    try:
        async with load.open_client() as client:
            response = await client.get(url, timeout=10.0)
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise TargetError(
            f"cannot ask {url} for its models: {error}; is the server up? else name one with --request-model"
        ) from None
