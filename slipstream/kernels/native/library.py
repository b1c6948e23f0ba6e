"""The compiled library, called through ctypes: no headers of Python or PyTorch are needed to build it."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FOLDER = Path(__file__).parent
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "best_path": (_INT, ()),
    "workers": (_POINTER, (_INT,)),
    "end_workers": (None, (_POINTER,)),
    "packed_bytes": (_LONG, (_INT,) * 3),
    "pack_four": (None, (_POINTER,) * 3 + (_INT,) * 2 + (_POINTER,)),
    "pack_eight": (None, (_POINTER,) * 2 + (_INT,) * 2 + (_POINTER,)),
    "quantize": (None, (_POINTER, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER)),
    "linear": (
        None,
        (_POINTER, _INT, _POINTER, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _LONG),
    ),
    "attend": (
        None,
        (_POINTER, _INT, _POINTER, _INT, _POINTER, *(_INT,) * 5, _POINTER, _INT, _POINTER, _LONG, _POINTER),
    ),
    "sample": (None, (_POINTER, _INT, _POINTER, _INT, _INT, _LONG, _POINTER, _POINTER, _POINTER, _POINTER)),
    "scratch_bytes": (_LONG, (_POINTER, _INT)),
    "run_layers": (None, (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER)),
    "context_bytes": (_LONG, (_POINTER,)),
    "write_context": (None, (_POINTER, _INT, *(_POINTER,) * 6)),
    "embed": (None, (_POINTER, *(_INT,) * 3, _POINTER, _INT, _POINTER)),
    "project_bytes": (_LONG, (_INT, _INT)),
    "project": (
        None,
        (_POINTER, _INT, _POINTER, *(_INT,) * 3, _POINTER, ctypes.c_float, _POINTER, _INT, _POINTER, _POINTER),
    ),
    "normalize": (None, (_POINTER, _INT, _POINTER, _POINTER, _INT, _INT, ctypes.c_float, _POINTER)),
    "block_bytes": (_LONG, (_POINTER,)),
    "draw_blocks": (None, (_POINTER, _INT, *(_POINTER,) * 6)),
}


class InstructionPath(IntEnum):
    """Which instructions a kernel uses. All give the same bits."""

    PLAIN = 0
    AVX2 = 1
    AVX512_VNNI = 2


class NativeLibrary:
    """Functions of the library by their names, without the prefix.

    Args:
        path: of the shared object.

    Attributes:
        best_path: the fastest path that this processor has.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, f"slipstream_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self.best_path = InstructionPath(self._functions["best_path"]())

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function. Tensors are passed by address: they must be contiguous, on the CPU, and outlive the call."""
        return self._functions[name](*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))


def open_library(folder: Path = _FOLDER) -> NativeLibrary | None:
    """The library that was built with the package; None where none was, or it cannot be loaded."""
    for path in sorted(folder.glob("_library*.so")):
        try:
            return NativeLibrary(path)
        except (OSError, AttributeError):  # of another machine, or of an older version
            continue
    return None


class Workers:
    """Threads of the library, which end with this object."""

    def __init__(self, library: NativeLibrary, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        self.handle: int = library.call("workers", num_threads)
        if not self.handle:
            raise MemoryError(f"no memory for {num_threads} threads")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.call("end_workers", self.handle)


def half_bits(values: Tensor) -> Tensor:
    """Half-precision numbers as the library takes them; contiguous."""
    return values.to(torch.float16).contiguous()
