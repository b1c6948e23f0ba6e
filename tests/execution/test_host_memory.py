"""Freed memory is kept, and a KV pool still takes memory only where it is written."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import os, resource, sys
import torch
from slipstream.attention.cache import PagedKVCache
from slipstream.execution.host_memory import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def faults(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

is_kept = sys.argv[1] == "kept"
if is_kept:
    assert keep_freed_memory()
faults(8)  # the heap settles
print("faults", faults(40))  # so many that the heap may grow by a block once more
block = torch.ones(50_000_000)
del block
before = resident()
cache = PagedKVCache(4, 1000, 16, 3, 64, dtype=torch.float32, device=torch.device("cpu"))
print("grown", resident() - before)
assert not cache.layers[3].any()
"""


def _run(kind: str) -> dict[str, int]:
    result = subprocess.run([sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, check=True)
    return {line.split()[0]: int(line.split()[1]) for line in result.stdout.splitlines()}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_blocks_are_reused_and_the_pool_stays_lazy() -> None:
    kept, plain = _run("kept"), _run("plain")
    assert plain["faults"] > 40 * 15_000  # 80 MB in pages of 4 kB, each time
    assert kept["faults"] < plain["faults"] / 20
    assert kept["grown"] < 10_000_000  # of 100 MB
