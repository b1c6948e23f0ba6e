"""Workloads of a scenario: how long requests are and when they come."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.bench.arrivals import (
    MAX_BURSTINESS,
    MAX_RATE,
    MIN_BURSTINESS,
    MIN_RATE,
    Arrivals,
    all_at_once,
    closed_loop,
    open_loop,
    replayed,
)
from slipstream.config import SettingError, shown
from slipstream.lab.simulate import SimulatedRequest
from slipstream.lab.toml_section import Section
from slipstream.simulation.input_files import parse_json, read_text

WORKLOAD_KEYS = ("name", "prompt_tokens", "output_tokens", "num_requests", "trace", "arrivals", "seed")
_LENGTH_KEYS: dict[str, tuple[str, ...]] = {
    "uniform": ("low", "high"),
    "lognormal": ("median", "sigma", "high"),
    "exponential": ("mean", "high"),
    "values": ("values",),
}
_ARRIVAL_KEYS: dict[str, tuple[str, ...]] = {
    "at-once": (),
    "closed": ("concurrency",),
    "poisson": ("rate",),
    "gamma": ("rate", "burstiness"),
    "trace": (),
}
MAX_TOKENS = 1 << 22
MAX_REQUESTS = 1_000_000
MAX_ALL_TOKENS = 1 << 26
"""Of one request, and of a workload: every token is simulated."""

Draw = Callable[[np.random.Generator, int], list[int]]
"""(source of chance, N) -> N lengths in tokens."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests and their arrivals, every length drawn.

    Attributes:
        name: how reports call it. requests: place is the request's index.
    """

    name: str
    requests: tuple[SimulatedRequest, ...] = field(repr=False)
    arrivals: Arrivals = field(repr=False)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return max(request.num_prompt_tokens + request.num_output_tokens for request in self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_output_tokens for request in self.requests)


def read_workload(section: Section, folder: Path) -> Workload:
    """From a `[[workload]]` table; `folder` is where its trace is looked for."""
    seed = section.whole("seed", 0)
    if "trace" in section:
        for key in ("prompt_tokens", "output_tokens"):
            if key in section:
                raise SettingError(f"{section.where}: {key} and trace exclude each other: the trace has the lengths")
        name = section.text("trace")
        times, requests = _read_trace(folder / name, section.where)
        most = section.whole("num_requests", len(requests), low=1, high=len(requests))
        times, requests = None if times is None else times[:most], requests[:most]
    else:
        count = section.whole("num_requests", low=1, high=MAX_REQUESTS)
        times = None
        prompts, outputs = (
            _lengths(section, key)(np.random.default_rng((seed, stream)), count)
            for stream, key in enumerate(("prompt_tokens", "output_tokens"))
        )
        requests = [SimulatedRequest(*lengths) for lengths in zip(prompts, outputs, strict=True)]
        name = (
            f"{_lengths_in_words(section, 'prompt_tokens')} in, {_lengths_in_words(section, 'output_tokens')} out, "
            f"{count} requests"
        )
    num_tokens = sum(request.num_prompt_tokens + request.num_output_tokens for request in requests)
    if num_tokens > MAX_ALL_TOKENS:
        raise SettingError(
            f"{section.where}: {len(requests)} requests have {num_tokens} tokens together; {MAX_ALL_TOKENS} are "
            "simulated at most. Take fewer or shorter requests"
        )
    arrivals = _arrivals(section, len(requests), times, seed)
    return Workload(section.text("name", f"{name}, {arrivals.description}"), tuple(requests), arrivals)


def _lengths(section: Section, key: str) -> Draw:
    value = section.values.get(key)
    if not isinstance(value, dict):
        fixed = section.whole(key, low=1, high=MAX_TOKENS)
        return lambda rng, count: [fixed] * count
    kind = Section(f"{section.where}: {key}", value, None).choice("distribution", tuple(_LENGTH_KEYS))
    table = Section(f"{section.where}: {key}", value, ("distribution", *_LENGTH_KEYS[kind]))
    high = table.whole("high", MAX_TOKENS, low=1, high=MAX_TOKENS) if kind != "values" else MAX_TOKENS
    if kind == "uniform":
        table.whole("high", low=1, high=MAX_TOKENS)
        low = table.whole("low", low=1, high=high)
        return lambda rng, count: rng.integers(low, high + 1, count).tolist()
    if kind == "values":
        values = [int(length) for length in table.numbers("values", low=1, high=MAX_TOKENS)]
        return lambda rng, count: rng.choice(values, count).tolist()
    if kind == "lognormal":
        centre = math.log(table.number("median", low=1, high=MAX_TOKENS))
        sigma = table.number("sigma", high=5)
        return lambda rng, count: _cut(rng.lognormal(centre, sigma, count), high)
    mean = table.number("mean", low=1, high=MAX_TOKENS)
    return lambda rng, count: _cut(rng.exponential(mean, count), high)


def _cut(lengths: np.ndarray[Any, np.dtype[np.float64]], high: int) -> list[int]:
    return [int(length) for length in np.clip(np.rint(lengths), 1, high)]


def _lengths_in_words(section: Section, key: str) -> str:
    value = section.values.get(key)
    return str(value.get("distribution")) if isinstance(value, dict) else str(value)


def _arrivals(section: Section, count: int, times: list[float] | None, seed: int) -> Arrivals:
    value = section.values.get("arrivals", {"kind": "at-once"})
    where = f"{section.where}: arrivals"
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        raise SettingError(f'{where} must be a table such as {{ kind = "poisson", rate = 2 }}, got {shown(value)}')
    kind = Section(where, value, None).choice("kind", tuple(_ARRIVAL_KEYS))
    table = Section(where, value, ("kind", *_ARRIVAL_KEYS[kind]))
    if kind == "trace":
        if times is None:
            raise SettingError(f"{where}: kind 'trace' needs trace = FILE, whose lines have arrival_s")
        return replayed(times)
    if kind == "closed":
        return closed_loop(count, table.whole("concurrency", low=1))
    if kind == "at-once":
        return all_at_once(count)
    rate = table.number("rate", low=MIN_RATE, high=MAX_RATE)
    burstiness = 1.0
    if kind == "gamma":
        burstiness = table.number("burstiness", low=MIN_BURSTINESS, high=MAX_BURSTINESS)
    return open_loop(count, rate, burstiness, seed)


def _read_trace(path: Path, where: str) -> tuple[list[float] | None, list[SimulatedRequest]]:
    """Lines of `{"prompt_tokens": …, "output_tokens": …, "arrival_s": …}`; the times are there for all or for none."""
    lines = read_text(path, f"{where}: trace").split("\n")
    times: list[float] = []
    requests: list[SimulatedRequest] = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except SettingError as error:
            raise SettingError(f"{path}, line {place}: {error}") from None
        entry = Section(f"{path}, line {place}", value, ("prompt_tokens", "output_tokens", "arrival_s"))
        requests.append(
            SimulatedRequest(
                entry.whole("prompt_tokens", low=1, high=MAX_TOKENS),
                entry.whole("output_tokens", low=1, high=MAX_TOKENS),
            )
        )
        if "arrival_s" in entry:
            times.append(entry.number("arrival_s"))
    if not requests:
        raise SettingError(f"{where}: trace {path} has no requests")
    if times and len(times) != len(requests):
        raise SettingError(f"{path}: {len(times)} of {len(requests)} lines have arrival_s; give it in all or in none")
    return times or None, requests
