"""The engine's command-line flags, the same for every command. A setting's flag is its name with dashes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.config import (
    COMPOSITIONS,
    DRAFT_BUDGETS,
    DTYPES,
    QUANTIZATIONS,
    VERIFICATIONS,
    SettingError,
    Settings,
)
from slipstream.engine.flat_settings import SPECULATIVE_CONFIG, settings_from_flat
from slipstream.simulation.record_to import RecordTo

# Setting, type, metavar, help. All are left out of the namespace when not given, so that resolution decides.
_VALUES: tuple[tuple[str, type, str, str], ...] = (
    ("max_model_len", int, "N", "prompt and output tokens of a request at most (default: the model's limit)"),
    ("max_num_seqs", int, "N", "requests running at once"),
    ("max_num_batched_tokens", int, "N", "rows of the target model in one step"),
    ("block_size", int, "N", "tokens per KV block (default: 16)"),
    ("kv_cache_memory_bytes", int, "N", "memory for KV"),
    ("draft_capacity", int, "N", "rows of one pass of the drafter (default: what its method needs)"),
    ("min_prefill_tokens", int, "N", "rows that waiting prompts get before drafts (default: an eighth)"),
    ("long_prefill_token_threshold", int, "N", "prompt rows of one request in a step at most; 0 is no limit"),
    ("priority_ageing_s", float, "S", "seconds of waiting that count as one priority step (default: 30)"),
    ("max_prompt_wait_s", float, "S", "a prompt that could run is held back no longer than this (default: 10)"),
    ("max_tpot_ms", float, "MS", "time per token that prompts must leave to running requests (default: no limit)"),
    ("cost_table", str, "FILE", "what steps cost: a file, profile (measured at start), or none"),
    ("profile_seconds", float, "S", "what measuring at start may take (default: 5)"),
    ("num_threads", int, "N", "CPU threads (default: all cores)"),
    ("device", str, "NAME", "auto, cpu or cuda (default: auto)"),
)
_SWITCHES = (
    ("enable_prefix_caching", "share KV of equal prompt beginnings (default: on)"),
    ("batch_invariant", "results never depend on what else is in the batch; slower (default: off)"),
)
_CHOICES: tuple[tuple[str, tuple[Any, ...], type, str], ...] = (
    ("dtype", DTYPES, str, "number format of weights and KV (default: auto)"),
    ("quantization", QUANTIZATIONS, str, "whether weights are multiplied as bytes; auto: on a CPU (default: auto)"),
    (
        "draft_budget",
        DRAFT_BUDGETS,
        str,
        "whether drafts have rows of their own or take the target's (default: separate)",
    ),
    ("composition", COMPOSITIONS, str, "when prompts run beside decodes (default: cost)"),
    ("verification", VERIFICATIONS, str, "which drafts are verified (default: confidence)"),
    ("commit_lag", (0, 1), int, "1 plans a step while the one before runs (default: 0)"),
)
_BLOCKS = "num_kv_blocks"
ENGINE_FLAGS = (
    *(name for name, *_ in _VALUES),
    *(name for name, _ in _SWITCHES),
    *(name for name, *_ in _CHOICES),
    _BLOCKS,
    SPECULATIVE_CONFIG,
)
"""Settings that `add_engine_arguments` has a flag for."""


def flag_of(setting: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`."""
    return "--" + setting.replace("_", "-")


def add_engine_arguments(parser: argparse.ArgumentParser, title: str = "engine") -> None:
    """One flag per setting of the engine, but for the model's name."""
    group = parser.add_argument_group(title)
    for name, kind, metavar, text in _VALUES:
        group.add_argument(flag_of(name), type=kind, metavar=metavar, help=text, default=argparse.SUPPRESS)
    group.add_argument(
        flag_of(_BLOCKS),
        "--num-gpu-blocks-override",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="size of the KV pool in blocks (default: from memory)",
    )
    for name, values, kind, text in _CHOICES:
        group.add_argument(flag_of(name), choices=values, type=kind, default=argparse.SUPPRESS, help=text)
    for name, text in _SWITCHES:
        group.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
    group.add_argument(
        flag_of(SPECULATIVE_CONFIG),
        metavar="JSON",
        default=argparse.SUPPRESS,
        help='a JSON object such as \'{"method": "ngram", "num_speculative_tokens": 5}\', or none (default: auto, the '
        "drafter that ships for the model, else n-grams)",
    )


def add_record_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to record every step."""
    group = parser.add_argument_group("recording")
    group.add_argument(
        "--record", metavar="FILE", help="write down every step, for replay and explain; gzip where it ends in .gz"
    )
    group.add_argument("--record-text", action="store_true", help="record token ids too; without it no text is written")


def record_to(args: argparse.Namespace) -> RecordTo | None:
    """Where the flags say to record. Raises SettingError for a file that cannot be written."""
    if args.record is None:
        if args.record_text:
            raise SettingError("--record-text says what to record, not where; give --record FILE too")
        return None
    to = RecordTo(Path(args.record), args.record_text)
    to.check()
    return to


def given_engine_flags(args: argparse.Namespace) -> dict[str, Any]:
    """The settings whose flags were given."""
    given = vars(args)
    return {name: given[name] for name in ENGINE_FLAGS if name in given}


def settings_from_args(args: argparse.Namespace, model: str, defaults: Mapping[str, Any] | None = None) -> Settings:
    """The settings tree; `defaults` (flat, as for `settings_from_flat`) stand for flags that were not given.

    Raises:
        SettingError: a speculative config that cannot work.
    """
    return settings_from_flat({**(defaults or {}), **given_engine_flags(args), "model": model})
