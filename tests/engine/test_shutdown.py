"""Stopping the front: open answers end at once and say why."""

from __future__ import annotations

import asyncio
import time

import pytest
from engine_helpers import VOCABULARY, make_engine

from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.engine import EngineDeadError
from slipstream.engine.engine_thread import EngineThread
from slipstream.request import FinishReason, SamplingParams


def test_open_answers_end_with_the_reason() -> None:
    engine = make_engine(max_model_len=4096, num_kv_blocks=400)

    async def run() -> None:
        front = AsyncEngine(EngineThread(engine), VOCABULARY)
        await front.start()
        sampling = SamplingParams(n=2, max_tokens=None, ignore_eos=True)
        generation = await front.submit("a", [[5, 6, 7], [8, 9]], sampling)
        deltas = aiter(generation)
        await anext(deltas)
        front.end_all("going home")
        begin = time.monotonic()
        ended = {number: delta async for number, delta in deltas if delta.finish_reason is not None}
        assert time.monotonic() - begin < 1
        assert set(ended) == {0, 1, 2, 3}
        assert {delta.finish_reason for delta in ended.values()} == {FinishReason.ERROR}
        assert ended[0].error == "going home"
        with pytest.raises(EngineDeadError, match="shutting down"):
            await front.submit("late", [[5]], sampling)
        await front.stop()

    asyncio.run(run())
    assert not engine.has_work()
    assert engine.scheduler.kv.pool.num_used == 0
