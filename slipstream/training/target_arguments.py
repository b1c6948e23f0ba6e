"""Flags that say how a target runs, for every command around drafters."""

from __future__ import annotations

import argparse

from slipstream.config import QUANTIZATIONS, ModelSettings


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """`--device`, `--dtype`, `--quantization`, `--num-threads`."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (default: auto)")
    parser.add_argument("--dtype", default="auto", metavar="TYPE", help="number format of the target (default: auto)")
    parser.add_argument(
        "--quantization", default="auto", choices=QUANTIZATIONS, help="whether the target's weights run as bytes"
    )
    parser.add_argument("--num-threads", type=int, metavar="N", help="CPU threads (default: all cores)")


def target_settings(args: argparse.Namespace) -> ModelSettings:
    """What these flags and `--model` say."""
    return ModelSettings(
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        quantization=args.quantization,
        num_threads=args.num_threads,
    )
