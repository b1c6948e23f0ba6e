"""`slipstream doctor`: what this machine has, and which arithmetic a model would run with here."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator

from slipstream.config import EMBEDDED_MODEL, ModelSettings
from slipstream.version import __version__

MIN_WIDTH = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `slipstream doctor`."""
    parser.add_argument("--model", default=EMBEDDED_MODEL, metavar="MODEL", help="the model asked about, as for serve")


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns 0, or 2 for a model that cannot be used."""
    from slipstream.models.config import ModelLoadError

    try:
        for name, value in findings(args.model):
            print(f"{name:<{MIN_WIDTH}} {value}")
    except ModelLoadError as error:
        print(f"slipstream: {error}", file=sys.stderr)
        return 2
    return 0


def findings(model: str) -> Iterator[tuple[str, str]]:
    """Name and value of each finding. The model is opened, its weights are not read. Raises ModelLoadError."""
    import torch

    from slipstream.engine.cost_tables import machine_name
    from slipstream.execution.arithmetic import resolve_arithmetic
    from slipstream.execution.build import thread_count
    from slipstream.kernels.native.library import InstructionPath, open_library
    from slipstream.models.loading import open_model
    from slipstream.speculation.shipped import shipped_drafters

    threads = thread_count(None)
    yield "slipstream", f"{__version__}, Python {platform.python_version()}, PyTorch {torch.__version__}"
    yield "machine", machine_name(torch.device("cpu"), threads)
    if torch.cuda.is_available():
        yield "CUDA", ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    else:
        yield "CUDA", "none"
    library = open_library()
    if library is None:
        yield "native kernels", "not built: install the package again where a C++20 compiler is (g++)"
    else:
        paths = [path.name.lower() for path in InstructionPath if path <= library.best_path]
        yield "native kernels", f"built; this processor runs {', '.join(paths)}; the last is in use"
    source = open_model(model, progress=False)
    config = source.config
    yield "model", f"{source.name}: {config.architecture}, {config.num_layers} layers of {config.hidden_size}"
    arithmetic = resolve_arithmetic(ModelSettings(model=model), config)
    why = f" ({arithmetic.reason})" if arithmetic.reason else ""
    yield "quantization", f"{arithmetic.quantization}{why}"
    yield "hidden states, KV", ", ".join(_name(dtype) for dtype in (arithmetic.dtype, arithmetic.cache_dtype))
    names = [drafter.folder.name for drafter in shipped_drafters() if drafter.target.name == source.name]
    yield "drafters that ship", ", ".join(names) or "none for this model; n-grams draft"
    yield "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "not set")


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
