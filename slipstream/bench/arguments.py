"""Flags of the two commands beside the engine's: workload and output."""

from __future__ import annotations

import argparse


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
