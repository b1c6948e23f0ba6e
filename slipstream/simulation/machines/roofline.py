"""A cost table from hardware and architecture figures.

A step takes the time to read the weights and KV that its rows touch, plus the time of its operations at the rate large
passes reach, plus what passes between accelerators, plus a floor per launched operation. Nothing overlaps: against the
published B300 curve the sum is nearer than the maximum of a textbook roofline (docs/machine-models.md). Without a graph
the host's time per operation comes on top, for every operation or, in piecewise graphs, for attention's.
"""

from __future__ import annotations

from slipstream.config import SettingError
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.costs import DecodeGraphs
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.protocol import StepMode
from slipstream.simulation.machines.architectures import Architecture
from slipstream.simulation.machines.hardware import Hardware
from slipstream.simulation.machines.published import capture_sizes_up_to

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
"""Where the model is tabulated; between them it is near enough to linear."""

_KV_TOKENS = (0.0, 1e6)  # linear in it
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ROWS_PER_REQUEST = (1, 2, 4, 8, 16)
_ACTIVATION_BYTES = 2  # bfloat16 between accelerators
_ALL_REDUCES_PER_LAYER = 2  # after attention and after the feed-forward part


def device_ms(
    hardware: Hardware, architecture: Architecture, tensor_parallel: int, num_rows: float, num_kv_tokens: float = 0.0
) -> float:
    """Milliseconds of a pass on the device alone."""
    kv_bytes = num_kv_tokens * architecture.kv_bytes_per_token
    if architecture.splits_kv:
        kv_bytes /= tensor_parallel
    read = hardware.read_ms(architecture.weight_bytes(num_rows) / tensor_parallel + kv_bytes)
    operations = 2.0 * architecture.active_parameters * num_rows / tensor_parallel
    compute = hardware.compute_ms(operations, architecture.precision) / architecture.compute_efficiency
    floor = architecture.num_layers * architecture.ops_per_layer * hardware.op_us * 1e-3
    return read + compute + floor + _exchange_ms(hardware, architecture, tensor_parallel, num_rows)


def roofline_table(
    hardware: Hardware,
    architecture: Architecture,
    *,
    tensor_parallel: int = 1,
    drafter: Architecture | None = None,
    decode_graphs: DecodeGraphs = DecodeGraphs.VARLEN,
    has_piecewise: bool = True,
    capture_limit: int = 512,
) -> CostTable:
    """The model as a table.

    Args:
        tensor_parallel: accelerators that share the work, a power of two.
        drafter: what drafts; None costs nothing.
        decode_graphs, has_piecewise: which graphs exist; none do where the hardware has no graphs.
        capture_limit: rows that graphs hold at most.

    Raises:
        SettingError: a degree that does not work, or a product that the hardware has no figure for.
    """
    _check(hardware, architecture, tensor_parallel)

    def over_rows(host_ops_per_layer: float) -> Grid:
        host = architecture.num_layers * host_ops_per_layer * hardware.host_op_us * 1e-3
        return Grid(
            tuple(map(float, ROWS)),
            _KV_TOKENS,
            tuple(
                tuple(host + device_ms(hardware, architecture, tensor_parallel, rows, kv) for kv in _KV_TOKENS)
                for rows in ROWS
            ),
        )

    target = {StepMode.EAGER: over_rows(architecture.ops_per_layer)}
    graphs = decode_graphs if hardware.has_graphs else DecodeGraphs.NONE
    if graphs is not DecodeGraphs.NONE:
        target[StepMode.FULL_GRAPH] = over_rows(0.0)
    if hardware.has_graphs and has_piecewise:
        target[StepMode.PIECEWISE] = over_rows(architecture.eager_ops_per_layer)
    has_graphs = len(target) > 1
    return CostTable(
        Provenance(
            machine=f"{tensor_parallel} x {hardware.name}, tensor parallel {tensor_parallel}",
            model=architecture.name + ("" if drafter is None else f", {drafter.name}"),
            source="modelled: roofline of simulation/machines, figures and sources in docs/machine-models.md",
        ),
        target,
        draft=None if drafter is None else _draft_grid(hardware, drafter, tensor_parallel),
        decode_graphs=graphs,
        capture_sizes=capture_sizes_up_to(capture_limit) if has_graphs else (),
    )


def _draft_grid(hardware: Hardware, drafter: Architecture, tensor_parallel: int) -> Grid:
    return Grid(
        tuple(map(float, _REQUESTS)),
        tuple(map(float, _ROWS_PER_REQUEST)),
        tuple(
            tuple(device_ms(hardware, drafter, tensor_parallel, requests * rows) for rows in _ROWS_PER_REQUEST)
            for requests in _REQUESTS
        ),
    )


def _exchange_ms(hardware: Hardware, architecture: Architecture, tensor_parallel: int, num_rows: float) -> float:
    """Milliseconds of the bytes that accelerators pass to each other."""
    if tensor_parallel == 1 or hardware.link_bandwidth is None:
        return 0.0
    part = 2.0 * (tensor_parallel - 1) / tensor_parallel  # of a ring all-reduce
    num_bytes = _ALL_REDUCES_PER_LAYER * architecture.num_layers * architecture.hidden_size * _ACTIVATION_BYTES
    return num_rows * num_bytes * part / hardware.link_bandwidth * 1e3


def _check(hardware: Hardware, architecture: Architecture, tensor_parallel: int) -> None:
    if architecture.precision not in hardware.flops:
        raise SettingError(
            f"{architecture.name} computes in {architecture.precision}, and there is no such figure for {hardware.name}"
        )
    if tensor_parallel < 1 or tensor_parallel & (tensor_parallel - 1):
        raise SettingError(f"tensor_parallel must be 1, 2, 4, 8, …, got {tensor_parallel}; the nearest is 1")
    if tensor_parallel > 1 and hardware.link_bandwidth is None:
        raise SettingError(f"{hardware.name} has no link to others: tensor_parallel must be 1, got {tensor_parallel}")
