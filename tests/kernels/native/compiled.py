"""Small libraries built for one test out of the package's sources."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "slipstream/kernels/native/source"


def compiled(folder: Path, sources: Sequence[Path], *flags: str) -> ctypes.CDLL:
    """A library of some sources, with the package's own options; skips where no compiler is."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    target = folder / "library.so"
    options = ["-std=c++20", "-O2", "-ffp-contract=off", "-w", "-shared", "-fPIC", f"-I{SOURCES}", *flags]
    built = subprocess.run(
        [compiler, *options, *map(str, sources), "-o", str(target)], capture_output=True, text=True, timeout=900
    )
    assert built.returncode == 0, built.stderr[-4000:]
    return ctypes.CDLL(str(target))
