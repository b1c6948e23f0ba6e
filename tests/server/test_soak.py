"""The soak's traffic and its checks, for seconds, in front of the scripted target; and that the checks can fail."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import printable_logits
from server_helpers import Starter

from slipstream.server.options import QueueLimits, ServerOptions

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from soak import Plan, as_json, soak
from soak_checks import HEALTHY, KV_IN_USE, PREEMPTIONS, RESIDENT, RUNNING, WAITING, Reading, judge, memory
from soak_traffic import Answered, Ask, Lengths, Tally, differing

REST = Reading(0.0, {RUNNING: 0, WAITING: 0, KV_IN_USE: 0, PREEMPTIONS: 3, HEALTHY: 1})


def tally(**values: Any) -> Tally:
    return Tally(**{"finished": 5, "left": 2, "refused": 2, **values})


def failed(found: Tally, rest: Reading = REST, readings: tuple[Reading, ...] = (), num_differing: int = 0) -> list[str]:
    return [c.name for c in judge(found, readings, rest, num_differing, len(found.sampled)) if c.ok is False]


def test_eight_clients_for_seconds(start_server: Starter) -> None:
    server = start_server(
        printable_logits(),
        options=ServerOptions(limits=QueueLimits(max_queued_requests=3)),
        num_speculative_tokens=3,
        max_num_seqs=4,
        max_model_len=320,
        num_kv_blocks=22,
    )
    plan = Plan(
        seconds=2.0, num_clients=8, sample=20, lengths=Lengths(max_output_tokens=60, max_texts=1), min_requests=150
    )
    soaked = asyncio.run(soak(server.url, plan))
    told = {check.name: check for check in soaked.checks}
    assert [check for check in soaked.checks if check.ok is False] == []
    assert told["sampled answers equal their solo runs"].ok is True
    assert told["the pool was small enough to preempt"].ok is True
    assert soaked.tally.overloaded > 0, "the queue was never full"
    assert as_json(plan, [], soaked)["faults"] == {}
    server.wait_idle()


@pytest.mark.parametrize(
    ("found", "rest", "num_differing", "name"),
    [
        (tally(faults=Counter({"status 500": 1})), {}, 0, "no fault"),
        (tally(refused=0), {}, 0, "every kind"),
        (tally(), {PREEMPTIONS: 0}, 0, "the pool"),
        (tally(), {KV_IN_USE: 0.01}, 0, "no block"),
        (tally(), {RUNNING: 1}, 0, "no block"),
        (tally(), {HEALTHY: 0}, 0, "the server"),
        (tally(sampled=[Answered(Ask("/v1/completions", {}), "a")]), {}, 1, "sampled answers"),
    ],
)
def test_each_check_fails_on_what_it_is_for(
    found: Tally, rest: dict[str, float], num_differing: int, name: str
) -> None:
    [only] = failed(found, Reading(0.0, {**REST.values, **rest}), num_differing=num_differing)
    assert only.startswith(name)


def test_nothing_fails_when_nothing_is_wrong() -> None:
    assert failed(tally()) == []


def resident(last: float, minutes: int = 30) -> list[Reading]:
    """Six readings a minute: grows before minute 5, then from 100 to `last`."""
    times = [10.0 * step for step in range(6 * minutes)]
    return [
        Reading(at, {RESIDENT: at / 3 if at < 300 else 100 + (last - 100) * (at - 300) / (times[-1] - 300)})
        for at in times
    ]


def test_memory_is_judged_from_minute_five() -> None:
    assert memory(resident(104.9)).ok is True
    assert memory(resident(106.0)).ok is False
    assert memory(resident(200.0, minutes=6)).ok is None


def test_another_text_alone_is_found(start_server: Starter) -> None:
    server = start_server()
    body = {"prompt": "hello", "max_tokens": 5, "seed": 1, "stream": True}
    [(answer, text)] = asyncio.run(differing(server.url, [Answered(Ask("/v1/completions", body), "wrong")]))
    assert answer.text == "wrong" and len(text) == 5
    assert asyncio.run(differing(server.url, [Answered(Ask("/v1/completions", body), text)])) == []
