"""Hardware figures, per accelerator; each knows its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from slipstream.simulation.machines.figures import Figure


class Precision(StrEnum):
    """What products are computed in."""

    BFLOAT16 = "bfloat16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator and the host that feeds it.

    Attributes:
        name: as people say it.
        memory_bandwidth: bytes per second, as stated.
        bandwidth_efficiency: part of it that long reads reach.
        flops: operations per second by precision, as stated, dense.
        link_bandwidth: bytes per second and direction to other accelerators; None where there is one.
        op_us: microseconds that an operation takes at least, launched by a graph (or directly, on a CPU).
        host_op_us: microseconds that the host needs to launch one operation without a graph; 0 on a CPU.
        has_graphs: steps can be captured.
    """

    name: str
    memory_bandwidth: Figure
    bandwidth_efficiency: Figure
    flops: Mapping[Precision, Figure]
    link_bandwidth: Figure | None
    op_us: Figure
    host_op_us: Figure
    has_graphs: bool = True

    def read_ms(self, num_bytes: float) -> float:
        """Milliseconds to read so many bytes of memory."""
        return num_bytes / (self.memory_bandwidth * self.bandwidth_efficiency) * 1e3

    def compute_ms(self, num_operations: float, precision: Precision) -> float:
        """Milliseconds of so many operations at the stated rate."""
        return num_operations / self.flops[precision] * 1e3


_SYSTEMS = (
    "ai-dynamo/aiconfigurator at 095f58a, aic-core/src/aiconfigurator_core/systems/*.yaml, "
    "https://github.com/ai-dynamo/aiconfigurator"
)
_CURVE = "inferred from the published B300 V4-Flash curve (published.py)"
_X86_HOST_OP_US = Figure(
    48.0,
    "inferred from the published B300 V4-Flash curve (published.py): its first eager step, 104.5 ms at 1,536 rows, "
    "less the 26 ms that the roofline gives the device, over 43 layers x 38 operations",
)
_GRACE_HOST_OP_US = Figure(
    _X86_HOST_OP_US * 1.45,
    "inferred: the x86 figure x 1.45. One PyTorch Linear costs a Grace host 2.75 times what it costs x86 "
    "(https://github.com/NVIDIA/TransformerEngine/issues/2053); not all of a step is such work, and the public result "
    "is met by 1.3 to 1.6",
)


def _gpu(
    name: str,
    bandwidth: float,
    bfloat16: float,
    fp8: float,
    link: float,
    host_op_us: Figure = _X86_HOST_OP_US,
) -> Hardware:
    """Terabytes and teraoperations per second, gigabytes per second of link."""
    return Hardware(
        name=name,
        memory_bandwidth=Figure(bandwidth * 1e12, _SYSTEMS),
        bandwidth_efficiency=Figure(0.8, _SYSTEMS),
        flops={
            Precision.BFLOAT16: Figure(bfloat16 * 1e12, _SYSTEMS),
            Precision.FP8: Figure(fp8 * 1e12, _SYSTEMS),
        },
        link_bandwidth=Figure(link * 1e9, _SYSTEMS),
        op_us=Figure(3.0, _SYSTEMS),
        host_op_us=host_op_us,
    )


GB300 = _gpu("GB300", 8.0, 2500, 5000, 900, _GRACE_HOST_OP_US)
B300 = _gpu("B300", 7.75, 2250, 4500, 900)
GB200 = _gpu("GB200", 8.0, 2500, 5000, 900, _GRACE_HOST_OP_US)
B200 = _gpu("B200", 7.7, 2250, 4500, 900)
H200 = _gpu("H200", 4.8, 989, 1978, 450)
H100 = _gpu("H100", 3.35, 989, 1978, 450)
RTX_PRO_6000 = _gpu("RTX PRO 6000 Server", 1.792, 468, 936, 64)
_MEASURED = "measured by `python benchmarks/machine_figures.py` on the machine of docs/performance.md"

THIS_CPU = Hardware(
    name="2 cores of an AMD EPYC (Zen 4)",
    memory_bandwidth=Figure(26.6e9, _MEASURED),
    bandwidth_efficiency=Figure(1.0, "measured on reads of weights already"),
    flops={Precision.BFLOAT16: Figure(310e9, _MEASURED)},
    link_bandwidth=None,
    op_us=Figure(1.25, _MEASURED),
    host_op_us=Figure(0.0, "the host is the machine"),
    has_graphs=False,
)

HARDWARE: Mapping[str, Hardware] = {
    "gb300": GB300,
    "b300": B300,
    "gb200": GB200,
    "b200": B200,
    "h200": H200,
    "h100": H100,
    "rtx-pro-6000": RTX_PRO_6000,
    "cpu": THIS_CPU,
}
"""By the name that scenarios use."""
