"""Flags of the two commands: one per engine setting, and those of the workload."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from slipstream.bench.variation import parse_value
from slipstream.config import (
    CacheSettings,
    ModelSettings,
    SchedulerSettings,
    Settings,
    parse_speculative_config,
)

_SECTIONS: dict[str, type] = {"model": ModelSettings, "cache": CacheSettings, "scheduler": SchedulerSettings}
_LEFT_OUT = ("served_model_name",)  # nothing is served here
_PREFIX = "engine_"


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """`--max-num-seqs` and its like; a flag that is not given leaves the setting to resolution."""
    group = parser.add_argument_group("engine (in process)")
    for kind in _SECTIONS.values():
        for field in dataclasses.fields(kind):
            if field.name in _LEFT_OUT:
                continue
            flag = f"--{field.name.replace('_', '-')}"
            if isinstance(field.default, bool):
                group.add_argument(flag, dest=_PREFIX + field.name, action=argparse.BooleanOptionalAction)
            else:
                group.add_argument(flag, dest=_PREFIX + field.name, metavar="VALUE")
    group.add_argument("--speculative-config", metavar="JSON", help="a JSON object, or none")


def engine_settings(args: argparse.Namespace, defaults: dict[str, Any], speculative_default: str) -> Settings:
    """The settings tree; `defaults` fill flags that were not given. Raises SettingError."""
    sections: dict[str, Any] = {}
    for name, kind in _SECTIONS.items():
        values: dict[str, Any] = {}
        for field in dataclasses.fields(kind):
            given = getattr(args, _PREFIX + field.name, None)
            if given is not None:
                values[field.name] = parse_value(kind, field.name, given) if isinstance(given, str) else given
            elif field.name in defaults:
                values[field.name] = defaults[field.name]
        sections[name] = kind(**values)
    config = speculative_default if args.speculative_config is None else args.speculative_config
    return Settings(**sections, speculative=parse_speculative_config(config))


def add_workload_arguments(parser: argparse.ArgumentParser, *, num_prompts: int, output_len: int) -> None:
    """Prompts, lengths, sampling and arrivals."""
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--dataset", default="built-in", metavar="NAME", help="built-in, random, or a JSONL file of prompts or turns"
    )
    group.add_argument("--num-prompts", type=int, default=num_prompts, metavar="N")
    group.add_argument(
        "--input-len", type=int, default=None, metavar="N", help="prompt tokens exactly (texts are cut to length)"
    )
    group.add_argument("--output-len", type=int, default=output_len, metavar="N", help="output tokens at most")
    group.add_argument("--temperature", type=float, default=0.0)
    group.add_argument("--seed", type=int, default=0, help="of arrivals, random tokens, sampling and forced luck")
    group.add_argument("--concurrency", type=int, metavar="N", help="closed loop: requests in flight")
    group.add_argument("--request-rate", type=float, metavar="R", help="open loop: requests per second")
    group.add_argument("--burstiness", type=float, default=1.0, help="gamma shape of the open loop; 1 is Poisson")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Where results go."""
    group = parser.add_argument_group("output")
    group.add_argument("--output-json", metavar="FILE", help="also write the numbers as JSON")
    group.add_argument("--no-progress", action="store_true", help="no progress bar")
