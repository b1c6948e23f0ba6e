"""A soak of a server that is started for it: many clients, mixed lengths, aborts, bad requests, too little KV.

    python benchmarks/soak.py [--minutes 30] [--clients 200] [--sample 200] [--json soak.json] [MODEL]

The pool is small enough that requests are preempted, the queue short enough that some are turned away. The server runs
batch-invariant, so that an answer must be the same whatever else was served. Exit status 1 when a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from running_server import running_server
from soak_checks import Check, Reading, at_rest, judge, read_every
from soak_traffic import Lengths, Tally, Traffic, differing

from slipstream.config import EMBEDDED_MODEL

READ_EVERY_S = 10.0
# 16 seats of up to some 250 tokens each, and 896 tokens of KV for them: 96 blocks were never quite full.
FLAGS = ("--batch-invariant", "--max-model-len", "512", "--max-num-seqs", "16", "--num-kv-blocks", "56")
MEANINGS = {True: "held", False: "FAILED", None: "not told"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how many at least, by how many, and what is compared afterwards."""

    seconds: float = 1800.0
    num_clients: int = 200
    sample: int = 200
    seed: int = 0
    lengths: Lengths = field(default_factory=Lengths)
    min_requests: int = 0


@dataclass(frozen=True, slots=True)
class Soaked:
    """What came of it."""

    tally: Tally
    readings: list[Reading]
    rest: Reading
    checks: list[Check]


async def soak(url: str, plan: Plan) -> Soaked:
    """Soak the server at `url`. Raises httpx.HTTPError when its metrics or its model list cannot be read."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        model = (await http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        readings: list[Reading] = []
        reader = asyncio.create_task(read_every(http, READ_EVERY_S, readings))
        try:
            traffic = Traffic(
                url,
                model,
                seed=plan.seed,
                sample=plan.sample,
                lengths=plan.lengths,
                min_requests=plan.min_requests,
            )
            tally = await traffic.run(plan.num_clients, plan.seconds)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        rest = await at_rest(http)
        others = await differing(url, tally.sampled)
    return Soaked(tally, readings, rest, judge(tally, readings, rest, len(others), plan.sample))


def as_json(plan: Plan, flags: Sequence[str], soaked: Soaked) -> dict[str, Any]:
    """All of it but the texts."""
    counts = {name: getattr(soaked.tally, name) for name in ("finished", "left", "refused", "overloaded")}
    return {
        "plan": dataclasses.asdict(plan),
        "flags": list(flags),
        **counts,
        "faults": dict(soaked.tally.faults),
        "checks": [dataclasses.asdict(check) for check in soaked.checks],
        "readings": [dataclasses.asdict(reading) for reading in soaked.readings],
    }


def show(checks: Sequence[Check]) -> None:
    table = Table("check", "", "what was seen")
    for check in checks:
        table.add_row(check.name, MEANINGS[check.ok], check.detail)
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL, help="as for serve")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--sample", type=int, default=200, help="answers that are compared with their solo runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("soak.json"))
    args = parser.parse_args()
    plan = Plan(args.minutes * 60, args.clients, args.sample, args.seed)
    # A little shorter than all clients at once, so that some are turned away.
    flags = [*FLAGS, "--max-queued-requests", str(plan.num_clients * 7 // 8), "--no-access-log"]
    with running_server(args.model, flags) as server:
        soaked = asyncio.run(soak(server.url, plan))
    args.json.write_text(json.dumps(as_json(plan, flags, soaked), indent=2) + "\n", encoding="utf-8")
    show(soaked.checks)
    return 1 if any(check.ok is False for check in soaked.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
