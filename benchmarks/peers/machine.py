"""What a table of figures says about the machine that made it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION_SETS = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
)
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class Machine:
    """A CPU. instruction_sets: those that matter here, as the kernel names them. num_cores: this process may use them.

    memory_bytes: of the machine; None where not known.
    """

    cpu: str
    instruction_sets: tuple[str, ...]
    num_cores: int
    memory_bytes: int | None
    system: str

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 in hardware; where not, peers compute in float32."""
        return not BFLOAT16.isdisjoint(self.instruction_sets)


def this_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """The machine at hand, as far as it tells."""
    values = _first_processor(cpuinfo)
    flags = set((values.get("flags") or values.get("Features") or "").split())
    try:
        memory: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = None
    return Machine(
        cpu=values.get("model name") or platform.processor() or platform.machine(),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=memory,
        system=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    )


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
