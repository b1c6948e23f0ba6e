"""Refuses what a benchmark cannot do, before anything is loaded or sent; errors name the flag and what works."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import httpx

from slipstream.config import SettingError

MAX_PROMPTS = 1_000_000
MAX_LENGTH = 1_000_000
MAX_REPEATS = 1000
MAX_VOCAB_SIZE = (1 << 31) - 1
MAX_SEED = (1 << 62) - 1  # each request adds its number, and servers take signed 64-bit seeds
MAX_TIMEOUT_S = 86400.0


def check_workload(args: argparse.Namespace) -> None:
    """Counts, lengths, the seed and the output file of either command."""
    _within("--num-prompts", args.num_prompts, 1, MAX_PROMPTS)
    _within("--output-len", args.output_len, 1, MAX_LENGTH)
    _within("--seed", args.seed, 0, MAX_SEED)
    if args.input_len is not None:
        _within("--input-len", args.input_len, 1, MAX_LENGTH)
    if args.output_json is not None:
        _check_writable(args.output_json)


def check_compare(args: argparse.Namespace) -> None:
    """What only `compare` has, and the workload."""
    check_workload(args)
    _within("--repeats", args.repeats, 1, MAX_REPEATS)


def check_bench(args: argparse.Namespace) -> None:
    """What only `bench` has, and the workload."""
    check_workload(args)
    _within("--num-warmups", args.num_warmups, 0, args.num_prompts)
    _within("--vocab-size", args.vocab_size, 1, MAX_VOCAB_SIZE)
    if not 0 < args.timeout <= MAX_TIMEOUT_S:
        raise SettingError(f"--timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds, got {args.timeout}")
    if args.base_url is not None:
        _check_url(args.base_url)
    if args.api_key is not None and not (args.api_key.isascii() and args.api_key.isprintable()):
        raise SettingError("--api-key must be printable ASCII, as HTTP headers are")


def _within(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        nearest = low if value < low else high
        raise SettingError(f"{flag} must be between {low} and {high}, got {value}; the nearest is {nearest}")


def _check_url(text: str) -> None:
    try:
        url = httpx.URL(text)
        works = url.scheme in ("http", "https") and url.host and (url.port is None or 1 <= url.port <= 65535)
        reason = "give scheme, host and port"
    except httpx.InvalidURL as error:
        works, reason = False, str(error)
    if not works or "?" in text or "#" in text:
        raise SettingError(f"--base-url {text!r} is no server's address ({reason}), such as http://127.0.0.1:8000")


def _check_writable(text: str) -> None:
    path = Path(text)
    try:
        if path.is_dir():
            raise SettingError(f"--output-json {text!r} is a directory; name a file in it")
        if not path.parent.is_dir():
            raise SettingError(f"--output-json {text}: there is no directory {path.parent}")
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        raise SettingError(f"--output-json {text[:80]}: cannot be written ({error.strerror or error})") from None
    if not writable:
        raise SettingError(f"--output-json {text}: there is no permission to write it")
