"""Architecture figures: what a pass of a model must read and compute; each figure knows its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slipstream.simulation.machines.figures import Figure
from slipstream.simulation.machines.hardware import Precision


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts, the same in every layer.

    Attributes:
        total_bytes: of all of them.
        per_layer: experts in a layer. per_row: experts that a row uses.
    """

    total_bytes: Figure
    per_layer: Figure
    per_row: Figure

    def part_touched(self, num_rows: float) -> float:
        """Expected part of the experts that some of the rows use, if rows choose evenly and on their own."""
        return 1.0 - math.pow(1.0 - self.per_row / self.per_layer, num_rows)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A target model.

    Attributes:
        name: as people say it.
        num_layers: decoder layers.
        dense_bytes: weights that every pass reads, whatever its rows: all but routed experts and the embedding table.
        active_parameters: parameters a row computes with.
        hidden_size: width of a row between layers.
        kv_bytes_per_token: KV that a token keeps, all layers.
        splits_kv: tensor parallelism splits the KV; else every accelerator reads all of it.
        ops_per_layer: operations launched in a layer.
        eager_ops_per_layer: those that piecewise graphs leave to the host: attention and what belongs to it.
        precision: what products are computed in.
        compute_efficiency: part of the stated operations per second that large passes reach, all in all.
        experts: routed experts; None for a dense model.
    """

    name: str
    num_layers: Figure
    dense_bytes: Figure
    active_parameters: Figure
    hidden_size: Figure
    kv_bytes_per_token: Figure
    splits_kv: bool
    ops_per_layer: Figure
    eager_ops_per_layer: Figure
    precision: Precision
    compute_efficiency: Figure
    experts: Experts | None = None

    def expert_bytes(self, num_rows: float) -> float:
        """Bytes of routed experts that so many rows read."""
        return self.experts.total_bytes * self.experts.part_touched(num_rows) if self.experts else 0.0

    def weight_bytes(self, num_rows: float) -> float:
        """Bytes of weights that a pass of so many rows reads."""
        return self.dense_bytes + self.expert_bytes(num_rows)


_V4_CONFIG = (
    "ai-dynamo/aiconfigurator at 095f58a, model_configs/deepseek-ai--DeepSeek-V4-Flash_config.json, "
    "https://github.com/ai-dynamo/aiconfigurator"
)
_V41_HEADERS = (
    "read from the checkpoint's safetensors headers, https://github.com/sqliteai/warp/blob/master/docs/DS41.md"
)
_V41_BYTES = "https://github.com/JustVugg/colibri/blob/master/docs/deepseek-v41.md"
_V41_PAPER = "abstract, https://huggingface.co/papers/2609.19969"
_V4_COUNT = (
    "counted by us from the published structure: hyper-connections 6, norms and quantisation 8, attention projections "
    "6, rope and KV writes 3, compressor and indexer 6, attention 1, router 2, experts 6"
)
_V4_BREAKS = "counted by us: KV writes, compressor, indexer and attention, which run outside piecewise graphs"
_V4_EFFICIENCY = Figure(
    0.17,
    "inferred from the published B300 V4-Flash curve (published.py): 8.25 us per row between 4,097 and 16,384 rows, "
    "against 2 x 13e9 operations on 4 accelerators",
)

DEEPSEEK_V4_FLASH = Architecture(
    name="DeepSeek-V4-Flash",
    num_layers=Figure(43, _V4_CONFIG),
    dense_bytes=Figure(12e9, "160 GB of checkpoint (vLLM recipes) less 147 GB of routed experts and 1 GB of embedding"),
    active_parameters=Figure(13e9, "284B in all, 13B active, as DeepSeek states"),
    hidden_size=Figure(4096, _V4_CONFIG),
    kv_bytes_per_token=Figure(3560, f"four times V4.1-Flash's, {_V41_PAPER}"),
    splits_kv=False,
    ops_per_layer=Figure(38, _V4_COUNT),
    eager_ops_per_layer=Figure(10, _V4_BREAKS),
    precision=Precision.FP8,
    compute_efficiency=_V4_EFFICIENCY,
    experts=Experts(
        Figure(147e9, f"277B parameters in FP4 with block scales; sizes from {_V4_CONFIG}"),
        Figure(256, _V4_CONFIG),
        Figure(6, _V4_CONFIG),
    ),
)

DEEPSEEK_V41_FLASH = Architecture(
    name="DeepSeek-V4.1-Flash",
    num_layers=Figure(40, _V41_HEADERS),
    dense_bytes=Figure(16.7e9, f"18 GB of dense weights, embedding and vision, {_V41_BYTES}, less a 1.3 GB embedding"),
    active_parameters=Figure(16e9, f"of a decode row; 8e9 of a prompt row, {_V41_PAPER}"),
    hidden_size=Figure(5120, _V41_HEADERS),
    kv_bytes_per_token=Figure(890, _V41_PAPER),
    splits_kv=False,
    ops_per_layer=Figure(38, f"as V4-Flash, {_V4_COUNT}"),
    eager_ops_per_layer=Figure(10, _V4_BREAKS),
    precision=Precision.FP8,
    compute_efficiency=_V4_EFFICIENCY,
    experts=Experts(Figure(289e9, _V41_BYTES), Figure(384, _V41_HEADERS), Figure(6, _V41_HEADERS)),
)

_QWEN_CONFIG = "config.json of https://huggingface.co/Qwen/Qwen3-8B"
_DENSE_COUNT = "counted by us: 2 norms, 4 projections, 2 head norms, rope, KV write, attention, activation, 2 additions"
_DENSE_EFFICIENCY = Figure(0.6, "assumed: large dense products commonly reach 0.5 to 0.7 of the stated rate")

QWEN3_8B = Architecture(
    name="Qwen3-8B",
    num_layers=Figure(36, _QWEN_CONFIG),
    dense_bytes=Figure(
        2 * (36 * (4096 * (32 + 2 * 8 + 32) * 128 + 3 * 4096 * 12288) + 4096 * 151936),
        f"computed from the shapes in {_QWEN_CONFIG}, bfloat16, without the embedding table",
    ),
    active_parameters=Figure(
        36 * (4096 * (32 + 2 * 8 + 32) * 128 + 3 * 4096 * 12288) + 4096 * 151936,
        f"computed from the shapes in {_QWEN_CONFIG}",
    ),
    hidden_size=Figure(4096, _QWEN_CONFIG),
    kv_bytes_per_token=Figure(36 * 2 * 8 * 128 * 2, f"36 layers x 8 heads x 128 x K and V, bfloat16, {_QWEN_CONFIG}"),
    splits_kv=True,
    ops_per_layer=Figure(14, _DENSE_COUNT),
    eager_ops_per_layer=Figure(2, "counted by us: KV write and attention"),
    precision=Precision.BFLOAT16,
    compute_efficiency=_DENSE_EFFICIENCY,
)

_SMOL_CONFIG = "config.json of https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct"
_SMOL_PARAMETERS = 30 * (576 * (9 + 2 * 3 + 9) * 64 + 3 * 576 * 1536) + 576 * 49152

SMOLLM2_135M = Architecture(
    name="SmolLM2-135M-Instruct",
    num_layers=Figure(30, _SMOL_CONFIG),
    dense_bytes=Figure(
        2 * _SMOL_PARAMETERS,
        f"computed from the shapes in {_SMOL_CONFIG}, kept in bfloat16, head tied to the embedding",
    ),
    active_parameters=Figure(_SMOL_PARAMETERS, f"computed from the shapes in {_SMOL_CONFIG}"),
    hidden_size=Figure(576, _SMOL_CONFIG),
    kv_bytes_per_token=Figure(30 * 2 * 3 * 64 * 2, f"30 layers x 3 heads x 64 x K and V, bfloat16, {_SMOL_CONFIG}"),
    splits_kv=True,
    ops_per_layer=Figure(12, f"{_DENSE_COUNT}, without head norms"),
    eager_ops_per_layer=Figure(2, "counted by us: KV write and attention"),
    precision=Precision.BFLOAT16,
    compute_efficiency=Figure(1.0, "this CPU's rate was measured on this model's own shapes"),
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "deepseek-v4-flash": DEEPSEEK_V4_FLASH,
    "deepseek-v4.1-flash": DEEPSEEK_V41_FLASH,
    "qwen3-8b": QWEN3_8B,
    "smollm2-135m": SMOLLM2_135M,
}
"""By the name that scenarios use."""
