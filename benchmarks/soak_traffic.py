"""What a soak sends: requests of mixed lengths, streamed and whole, some whose clients leave, and bad ones."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from slipstream.bench.dataset import BUILT_IN_PROMPTS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
REQUEST_S = 600.0
MAX_WAIT_S = 2.0
OVERLOADED = 503
ABORT_SHARE, BAD_SHARE = 0.15, 0.1


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long requests are: output tokens at most, and prompts of up to so many built-in texts."""

    max_output_tokens: int = 96
    max_texts: int = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """A request.

    Attributes:
        leave_after: the client goes away after so many events; None stays to the end.
        content: sent instead of the body: bytes that are no JSON.
        is_bad: must be refused with 4xx.
    """

    path: str
    body: dict[str, Any]
    leave_after: int | None = None
    content: bytes | None = None
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that came to its end, to be compared with the same request alone."""

    ask: Ask
    text: str


@dataclass(slots=True)
class Tally:
    """What came of all requests. `faults`: what must not happen, by what it was; `sampled`: of the finished ones."""

    finished: int = 0
    left: int = 0
    refused: int = 0
    overloaded: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    sampled: list[Answered] = field(default_factory=list)


def draw(chance: random.Random, model: str, lengths: Lengths) -> Ask:
    """The next request of a client."""
    kind = chance.random()
    if kind < BAD_SHARE:
        return _bad(chance, model)
    prompt = " ".join(chance.choices(BUILT_IN_PROMPTS, k=chance.randint(1, lengths.max_texts)))
    prompt = prompt[: chance.randint(8, len(prompt))]
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": chance.randint(1, lengths.max_output_tokens),
        "temperature": chance.choice([0.0, 0.7, 1.0]),
        "seed": chance.randrange(1 << 31),
    }
    if chance.random() < 0.2:
        body["speculative"] = {"enabled": False}
    path = chance.choice([CHAT, COMPLETIONS])
    body |= {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    if kind < BAD_SHARE + ABORT_SHARE:
        return Ask(path, body | {"stream": True}, leave_after=chance.randint(0, 5))
    return Ask(path, body | {"stream": chance.random() < 0.7})


def _bad(chance: random.Random, model: str) -> Ask:
    body: dict[str, Any] = {"model": model, "prompt": "hello", "max_tokens": 4}
    wrong: list[dict[str, Any]] = [
        {"temperature": -1},
        {"max_tokens": "many"},
        {"model": "nobody"},
        {"prompt": "word " * 100_000},
        {"stop_token_ids": [1 << 40]},
        {"top_p": 7},
        {"n": 0},
    ]
    content = b'{"prompt": "hello"' if chance.random() < 0.15 else None
    return Ask(COMPLETIONS, body | chance.choice(wrong), content=content, is_bad=True)


class Traffic:
    """Clients that send one request after another until their time is over.

    Args:
        min_requests: they go on after their time until so many have been sent.
        sample: how many finished answers are kept, each finished one with the same chance.
    """

    def __init__(
        self, url: str, model: str, *, seed: int, sample: int, lengths: Lengths, min_requests: int = 0
    ) -> None:
        self.tally = Tally()
        self._url = url
        self._model = model
        self._seed = seed
        self._sample = sample
        self._lengths = lengths
        self._num_missing = min_requests
        self._choice = random.Random(seed)

    async def run(self, num_clients: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> Tally:
        """Returns when every client has had its last answer, which may be later than `seconds`."""
        end = clock() + seconds
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=self._url, limits=limits, timeout=REQUEST_S) as http:

            async def client(number: int) -> None:
                chance = random.Random(self._seed * 100_003 + number)
                while clock() < end or self._num_missing > 0:
                    self._num_missing -= 1
                    await self.send(http, draw(chance, self._model, self._lengths))

            await asyncio.gather(*(client(number) for number in range(num_clients)))
        return self.tally

    async def send(self, http: httpx.AsyncClient, ask: Ask) -> None:
        """Send one request and book what came of it. Never raises."""
        try:
            content = json.dumps(ask.body).encode() if ask.content is None else ask.content
            headers = {"Content-Type": "application/json"}
            async with http.stream("POST", ask.path, content=content, headers=headers) as response:
                if response.status_code == 200 and not ask.is_bad:
                    await self._read(response, ask)
                    return
                await response.aread()
            await self._book_refusal(response, ask)
        except httpx.HTTPError as error:
            self.tally.faults[f"connection: {type(error).__name__}"] += 1
        except (ValueError, KeyError, IndexError) as error:
            self.tally.faults[f"unreadable answer: {type(error).__name__}"] += 1

    async def _read(self, response: httpx.Response, ask: Ask) -> None:
        if not ask.body["stream"]:
            await response.aread()
            self._finish(ask, text_of(response.json()))
            return
        text, num_events, is_done = "", 0, False
        async for line in response.aiter_lines():
            if num_events == ask.leave_after:
                break
            if not line.startswith("data: "):
                continue
            num_events += 1
            if line == "data: [DONE]":
                is_done = True
                break
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self.tally.faults[f"error in a stream: {event['error'].get('code')}"] += 1
                return
            text += text_of(event)
        if is_done:
            self._finish(ask, text)
        elif ask.leave_after is not None:
            self.tally.left += 1
        else:
            self.tally.faults["a stream without its end"] += 1

    async def _book_refusal(self, response: httpx.Response, ask: Ask) -> None:
        status = response.status_code
        if status == OVERLOADED and response.json()["error"]["code"] == "overloaded":
            self.tally.overloaded += 1
            await asyncio.sleep(min(float(response.headers["Retry-After"]), MAX_WAIT_S))
        elif ask.is_bad and 400 <= status < 500:
            self.tally.refused += 1
        else:
            self.tally.faults[f"status {status}" + (" for a bad request" if ask.is_bad else "")] += 1

    def _finish(self, ask: Ask, text: str) -> None:
        """Keep a uniform sample of unknown many (reservoir sampling)."""
        tally = self.tally
        tally.finished += 1
        if len(tally.sampled) < self._sample:
            tally.sampled.append(Answered(ask, text))
        else:
            place = self._choice.randrange(tally.finished)
            if place < self._sample:
                tally.sampled[place] = Answered(ask, text)


def text_of(event: dict[str, Any]) -> str:
    """The text of an answer or of a chunk, of either route."""
    if not event["choices"]:
        return ""
    choice = event["choices"][0]
    if "text" in choice:
        return str(choice["text"])
    return choice.get("message", choice.get("delta", {})).get("content") or ""


async def differing(url: str, answers: list[Answered]) -> list[tuple[Answered, str]]:
    """Ask each again, one at a time and unstreamed, and give those whose text is another now."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_S) as http:
        for answer in answers:
            alone = await http.post(answer.ask.path, json=answer.ask.body | {"stream": False})
            text = text_of(alone.raise_for_status().json())
            if text != answer.text:
                found.append((answer, text))
    return found
