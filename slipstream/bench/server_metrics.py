"""What a server's `/metrics` page says of a run: the difference between before and after.

The counters are the server's, so other clients' requests during the run are in them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from slipstream.bench.acceptance import Acceptance
from slipstream.bench.client import HttpLoad

PREFIX = "vllm:spec_decode_num_"
DRAFTED = "slipstream:spec_decode_num_drafted_tokens_total"
STEPS = "slipstream:engine_steps_total"


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over all engines and models of the page.

    Attributes:
        by_name: series name -> value. by_position: drafts accepted per position. steps: engine steps by kind.
    """

    by_name: Mapping[str, float] = field(default_factory=dict)
    by_position: Mapping[int, float] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)


def parse_counters(page: str) -> Counters:
    """Read a Prometheus page; series not known here are left out."""
    by_name: dict[str, float] = {}
    by_position: dict[int, float] = {}
    steps: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"{PREFIX}accepted_tokens_per_pos_total":
                position = int(sample.labels["position"])
                by_position[position] = by_position.get(position, 0.0) + sample.value
            elif sample.name == STEPS:
                kind = sample.labels.get("kind", "")
                steps[kind] = steps.get(kind, 0.0) + sample.value
            elif sample.name.startswith(PREFIX) or sample.name == DRAFTED:
                by_name[sample.name] = by_name.get(sample.name, 0.0) + sample.value
    return Counters(by_name, by_position, steps)


def acceptance_between(before: Counters, after: Counters) -> Acceptance | None:
    """None where the server speculates not at all, or nobody was served in between."""

    def grown(name: str) -> int:
        return round(after.by_name.get(name, 0.0) - before.by_name.get(name, 0.0))

    num_drafts, verified = grown(f"{PREFIX}drafts_total"), grown(f"{PREFIX}draft_tokens_total")
    if num_drafts <= 0:
        return None
    return Acceptance(
        num_decode_steps=None,
        num_decode_tokens=None,
        num_steps_verified=num_drafts,
        # Only Slipstream counts drafts made apart; elsewhere `draft_tokens` may hold some that were never verified.
        drafted=grown(DRAFTED) if DRAFTED in after.by_name else verified,
        verified=verified,
        accepted=grown(f"{PREFIX}accepted_tokens_total"),
        accepted_by_position=tuple(
            round(after.by_position[position] - before.by_position.get(position, 0.0))
            for position in sorted(after.by_position)
        ),
    )


def steps_between(before: Counters, after: Counters) -> dict[str, int] | None:
    """Engine steps by kind; None for servers that do not count them."""
    if not after.steps:
        return None
    return {kind: round(count - before.steps.get(kind, 0.0)) for kind, count in after.steps.items()}


async def read_counters(load: HttpLoad) -> Counters | None:
    """The page as it is now; None where the server has none."""
    try:
        async with load.open_client() as client:
            response = await client.get(f"{load.target.root}/metrics", timeout=10.0)
            response.raise_for_status()
            return parse_counters(response.text)
    except (httpx.HTTPError, ValueError):
        return None
