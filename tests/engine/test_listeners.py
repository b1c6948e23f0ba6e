"""A fault in metrics never costs a request, nor does one request's fault cost another's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_helpers import VOCABULARY, make_engine

from slipstream.engine import tracker
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.engine_thread import EngineThread
from slipstream.engine.output_processor import ChoiceProcessor
from slipstream.request import FinishReason, RequestOutput, SamplingParams


class Raising:
    """A listener of which everything fails."""

    def __init__(self) -> None:
        self.calls: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        def method(*args: object) -> None:
            self.calls.add(name)
            raise RuntimeError("metrics are broken")

        return method


async def texts(front: AsyncEngine, names: str, max_tokens: int = 12) -> dict[str, tuple[int, FinishReason | None]]:
    """Tokens and ending of one request per name, all at once."""

    async def one(name: str) -> tuple[int, FinishReason | None]:
        generation = await front.submit(name, [[5, 6, ord(name)]], SamplingParams(max_tokens=max_tokens, seed=1))
        count, reason = 0, None
        async for _, delta in generation:
            count += len(delta.token_ids)
            reason = delta.finish_reason
        return count, reason

    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


def test_listeners_and_observers_that_raise_cost_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(num_speculative_tokens=3)
    seen: list[int] = []

    def broken(plan: Any, result: Any) -> None:
        raise RuntimeError("observers are broken")

    engine.observers.add(broken)
    engine.observers.add(lambda plan, result: seen.append(plan.step))
    raising = Raising()

    async def run() -> None:
        front = AsyncEngine(EngineThread(engine), VOCABULARY, listeners=[raising])
        await front.start()
        assert await texts(front, "ab") == dict.fromkeys("ab", (12, FinishReason.LENGTH))
        assert front.health().ok
        await front.stop()

    asyncio.run(run())
    assert raising.calls == {"on_submitted", "on_first_token", "on_tokens", "on_step", "on_finished", "on_answered"}
    assert len(seen) > 1, "the others still hear of every step"
    said = [record for record in caplog.records if record.exc_info]
    assert len(said) == 2, "each is said once"


def test_an_output_that_cannot_be_read_ends_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(num_speculative_tokens=3)

    class Choosy(ChoiceProcessor):
        def process(self, output: RequestOutput) -> Any:
            if output.request_id.startswith("b"):
                raise ValueError("unreadable")
            return super().process(output)

    monkeypatch.setattr(tracker, "ChoiceProcessor", Choosy)

    async def run() -> None:
        front = AsyncEngine(EngineThread(engine), VOCABULARY)
        await front.start()
        found = await texts(front, "abc", max_tokens=60)
        assert found["b"] == (0, FinishReason.ERROR)
        assert found["a"] == found["c"] == (60, FinishReason.LENGTH)
        for _ in range(200):
            if not engine.has_work():
                break
            await asyncio.sleep(0.01)
        assert not engine.has_work() and front.backlog.num_choices == 0
        await front.stop()

    asyncio.run(run())
    assert engine.scheduler.kv.pool.num_used == 0


def test_drain_waits_for_answers_and_takes_no_more() -> None:
    engine = make_engine()

    async def run() -> None:
        front = AsyncEngine(EngineThread(engine), VOCABULARY)
        await front.start()
        assert await front.drain(0.01), "nothing to wait for"
        front._draining = False
        generation = await front.submit("a", [[5, 6]], SamplingParams(max_tokens=8))
        assert not await front.drain(0.01)
        assert front.health().ok and not front.readiness().ok
        waiting = asyncio.create_task(front.drain(30.0))
        assert sum([len(delta.token_ids) async for _, delta in generation]) == 8
        assert await waiting
        await front.stop()

    asyncio.run(run())
