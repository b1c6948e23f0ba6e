"""Reported fault L7: silence in the middle of a stream. The ids are those of tests/cases.toml."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from engine_helpers import make_engine, printable_logits
from test_engine import PROMPT, run

from slipstream.engine.messages import Submission
from slipstream.request import SamplingParams
from slipstream.server.sse import KEEP_ALIVE, KEEP_ALIVE_S, EventStream


def test_L7_a_long_step_is_bridged_by_a_comment() -> None:
    closed: list[bool] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(0.25)
        yield b"data: 2\n\n"

    async def stream() -> list[bytes]:
        sent: list[bytes] = []

        async def send(message: Any) -> None:
            if message.get("body"):
                sent.append(message["body"])

        async def receive() -> Any:
            await asyncio.sleep(60)

        response = EventStream(events(), lambda: closed.append(True), keep_alive_s=0.05)
        await response({"type": "http"}, receive, send)
        return sent

    sent = asyncio.run(stream())
    assert sent[0] == b"data: 1\n\n" and sent[-1] == b"data: 2\n\n"
    assert len(sent) >= 4 and set(sent[1:-1]) == {KEEP_ALIVE}, "comments, and nothing that a client takes for data"
    assert closed == [True] and KEEP_ALIVE_S <= 15


def test_L7_no_step_of_a_long_stream_is_silent() -> None:
    """4,000 tokens with speculation: every step gives a chunk, so a gap is a step's time."""
    logits = printable_logits()
    engine = make_engine(logits, num_speculative_tokens=3, max_model_len=4200, num_kv_blocks=300)
    sampling = SamplingParams(temperature=0.0, max_tokens=4000)
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=0)])["a", 0]
    statistics = engine.scheduler.statistics
    assert sum(len(delta.token_ids) for delta in deltas) == 4000
    assert len(deltas) == sum(statistics.num_steps.values())
    assert max(len(delta.token_ids) for delta in deltas) <= 4 and statistics.num_accepted_tokens > 2000
