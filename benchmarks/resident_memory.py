"""What Slipstream keeps resident at 64 requests: weights, runtime and buffers, with the KV pool told apart.

    python benchmarks/resident_memory.py [MODEL] [--requests 64] [--prompts FILE.jsonl] [--plain]

Linux only: resident pages of the KV tensors are counted in /proc/self/pagemap (proc_pid_pagemap(5)).
"""

from __future__ import annotations

import argparse
import gc
import resource
from pathlib import Path

from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.bench.dataset import BUILT_IN_PROMPTS
from slipstream.config import EMBEDDED_MODEL
from slipstream.engine.llm import LLM
from slipstream.request import SamplingParams
from slipstream.training.measuring_prompts import prompts_of

PAGE = resource.getpagesize()
IS_PRESENT = 0x80  # bit 63 of an entry of 8 bytes
NUM_TOKENS = 128


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def resident_bytes_of(tensor: Tensor) -> int:
    """Pages of its memory that are there; those at its edges count whole."""
    first = tensor.data_ptr() // PAGE
    last = (tensor.data_ptr() + tensor.nbytes - 1) // PAGE
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(first * 8)
        entries = pages.read((last - first + 1) * 8)
    return sum(entry & IS_PRESENT > 0 for entry in entries[7::8]) * PAGE


def kv_bytes() -> int:
    """Resident, of every KV pool: the target's, and the drafter's."""
    pools = [found for found in gc.get_objects() if isinstance(found, PagedKVCache)]
    return sum(resident_bytes_of(layer) for pool in pools for layer in pool.layers)


def report(when: str) -> None:
    kv, whole = kv_bytes(), resident_bytes()
    print(f"{when}: {whole / 1e6:.0f} MB resident, KV {kv / 1e6:.0f} MB, without it {(whole - kv) / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompts", help="JSONL (default: built-in prompts, again and again)")
    parser.add_argument("--plain", action="store_true", help="without speculation")
    args = parser.parse_args()
    texts = prompts_of(args.prompts) if args.prompts else list(BUILT_IN_PROMPTS)
    prompts = [texts[number % len(texts)] for number in range(args.requests)]
    if args.plain:
        llm = LLM(args.model, speculative_config=None, max_num_seqs=args.requests)
    else:
        llm = LLM(args.model, max_num_seqs=args.requests)
    report("loaded")
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True))
    report(f"after {args.requests} requests at once, {NUM_TOKENS} tokens each")


if __name__ == "__main__":
    main()
