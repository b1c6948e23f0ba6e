"""What must hold after a soak, judged from what the clients and the server's metrics said."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from soak_traffic import Tally

SETTLED_S = 300.0
MAX_GROWTH = 0.05
LAST_READINGS = 6
REST_S = 60.0
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV_IN_USE, PREEMPTIONS = "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total"
RESIDENT, HEALTHY = "process_resident_memory_bytes", "slipstream:healthy"


@dataclass(frozen=True, slots=True)
class Reading:
    """The server's `/metrics` at one moment: sums over all labels by name; `elapsed` in seconds since the start."""

    elapsed: float
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold; `ok` is None where the run cannot tell."""

    name: str
    ok: bool | None
    detail: str


async def read(http: httpx.AsyncClient, elapsed: float) -> Reading:
    """Raises httpx.HTTPError."""
    page = (await http.get("/metrics")).raise_for_status().text
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return Reading(elapsed, values)


async def read_every(
    http: httpx.AsyncClient, seconds: float, kept: list[Reading], clock: Callable[[], float] = time.monotonic
) -> None:
    """Read until cancelled, into `kept`."""
    started = clock()
    while True:
        kept.append(await read(http, clock() - started))
        await asyncio.sleep(seconds)


async def at_rest(http: httpx.AsyncClient, seconds: float = REST_S) -> Reading:
    """The first reading with nothing running or waiting, or the last one when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        reading = await read(http, 0.0)
        is_idle = not reading.values[RUNNING] and not reading.values[WAITING] and not reading.values[KV_IN_USE]
        if is_idle or time.monotonic() > deadline:
            return reading
        await asyncio.sleep(0.1)


def judge(tally: Tally, readings: Sequence[Reading], rest: Reading, num_differing: int, wanted: int) -> list[Check]:
    """Every check.

    Args:
        rest: after the last answer. num_differing: of the sampled answers. wanted: how many were to be sampled.
    """
    faults = ", ".join(f"{number} × {what}" for what, number in tally.faults.most_common()) or "none"
    held = rest.values
    return [
        Check("no fault: 5xx but overload, reset, broken stream", not tally.faults, faults),
        Check(
            "every kind of request was there",
            min(tally.finished, tally.left, tally.refused) > 0,
            f"{tally.finished} finished, {tally.left} left, {tally.refused} refused, {tally.overloaded} overloaded",
        ),
        Check("the pool was small enough to preempt", held[PREEMPTIONS] > 0, f"{held[PREEMPTIONS]:.0f} preemptions"),
        Check(
            "no block and no request is lost",
            not (held[KV_IN_USE] or held[RUNNING] or held[WAITING]),
            f"{held[KV_IN_USE]:.2%} of KV in use at rest, {held[RUNNING]:.0f} running, {held[WAITING]:.0f} waiting",
        ),
        Check("the server is healthy", held[HEALTHY] == 1, f"{HEALTHY} {held[HEALTHY]:.0f}"),
        memory(readings),
        Check(
            "sampled answers equal their solo runs",
            num_differing == 0 if len(tally.sampled) == wanted else None if not num_differing else False,
            f"{len(tally.sampled) - num_differing} of {len(tally.sampled)} equal; {wanted} were to be compared",
        ),
    ]


def memory(readings: Sequence[Reading]) -> Check:
    """Resident memory after minute 5 against the median of the last readings; needs ten minutes to say anything."""
    name = f"resident memory grows less than {MAX_GROWTH:.0%} after minute 5"
    settled = [reading for reading in readings if reading.elapsed >= SETTLED_S and RESIDENT in reading.values]
    if len(settled) < 2 * LAST_READINGS or settled[-1].elapsed < 2 * SETTLED_S:
        return Check(name, None, "too short a run to tell")
    first = settled[0].values[RESIDENT]
    last = statistics.median(reading.values[RESIDENT] for reading in settled[-LAST_READINGS:])
    growth = last / first - 1
    return Check(name, growth < MAX_GROWTH, f"{first / 2**20:.0f} to {last / 2**20:.0f} MiB: {growth:+.1%}")
