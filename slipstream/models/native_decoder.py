"""A decoder whose layers run in the native library, on a CPU: the interface of models/decoder.py Decoder.

Activations are float32, weights are groups of four or eight bits (kernels/native/groups.py), KV is bfloat16 or float32.
A row's bits do not follow its batch, chunk or threads, so there is no other mode for batch invariance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata
from slipstream.kernels.native.ends import NativeEnds
from slipstream.kernels.native.groups import GROUP, Groups, StoredWeight, group_weight, joined
from slipstream.kernels.native.layers import LayerShape, NativeLayer, NativeLayers, NativeStep
from slipstream.kernels.native.library import InstructionPath, Workers
from slipstream.kernels.native.linear import NativeLinear, PackedWeight, pack
from slipstream.models.config import DecoderConfig
from slipstream.models.decoder import DecoderOutput
from slipstream.models.rope import RotaryTable

LANES = 8
MAX_HEAD_DIM = 256


def misfit(config: DecoderConfig) -> str | None:
    """Why the kernels do not take a model of this shape; None where they do.

    Inputs of projections must be whole groups, halves of heads whole lanes.
    """
    for what, size, unit in (
        ("hidden size", config.hidden_size, GROUP),
        ("intermediate size", config.intermediate_size, GROUP),
        ("width of all heads", config.num_heads * config.head_dim, GROUP),
        ("head size", config.head_dim, 2 * LANES),
    ):
        if size % unit:
            return f"its kernels take a {what} that is a multiple of {unit}, not {size}"
    if config.head_dim > MAX_HEAD_DIM:
        return f"its kernels take heads of at most {MAX_HEAD_DIM} numbers, not {config.head_dim}"
    return None


class NativeDecoder:
    """See Decoder; `weights` may hold groups as a file stores them.

    Attributes:
        workers, path: what its kernels run on, for drafters to run on too.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, StoredWeight],
        *,
        workers: Workers,
        path: InstructionPath | None = None,
        cache_dtype: torch.dtype = torch.bfloat16,
        num_positions: int | None = None,
        source_fingerprint: str | None = None,
    ) -> None:
        self.config = config
        self.source_fingerprint = source_fingerprint
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.cache_dtype = cache_dtype
        self.workers = workers
        self._linear = NativeLinear(workers, path)
        self.path = self._linear.path
        self._embedding = _groups(weights["model.embed_tokens.weight"])
        tied = config.tie_word_embeddings
        self._head_groups = self._embedding if tied else _groups(weights["lm_head.weight"])
        head = pack(workers.library, self._head_groups)
        embedding = head if tied else pack(workers.library, self._embedding)
        norm = _floats(weights["model.norm.weight"])
        self._ends = NativeEnds(workers, embedding, head, norm, config.rms_norm_eps, path)
        self.num_positions = num_positions or config.max_position
        self._rotary = RotaryTable(
            config.head_dim,
            config.rope_theta,
            config.rope_scaling,
            self.num_positions,
            dtype=torch.float32,
            device=self.device,
        )
        shape = LayerShape.of(config)
        layers = [self._layer(weights, number) for number in range(config.num_layers)]
        self._layers = NativeLayers(workers, shape, layers, path)

    @property
    def tile_rows(self) -> int | None:
        """See TransformerDecoder."""
        return None

    @property
    def description(self) -> str:
        """See TransformerDecoder."""
        return f"int8 ({self.path.name.lower()})"

    @property
    def head_groups(self) -> Groups:
        """Output projection [vocabulary, hidden], shared with drafters."""
        return self._head_groups

    @property
    def embedding(self) -> Tensor:
        """[vocabulary, hidden], float32, made anew."""
        return self._embedding.dense()

    @property
    def head(self) -> Tensor:
        """Output projection [vocabulary, hidden], float32, made anew."""
        return self._head_groups.dense()

    def embed(self, token_ids: Tensor) -> Tensor:
        """[N] to float32 [N, hidden]."""
        return self._ends.embed(token_ids)

    def make_cache(self, num_blocks: int, block_size: int) -> PagedKVCache:
        """See Decoder."""
        config = self.config
        return PagedKVCache(
            config.num_layers,
            num_blocks,
            block_size,
            config.num_kv_heads,
            config.head_dim,
            dtype=self.cache_dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, metadata: AttentionMetadata, cache: PagedKVCache, hidden_layers: Sequence[int] = ()
    ) -> DecoderOutput:
        """See Decoder."""
        x = self.embed(token_ids)
        kept = {layer: torch.empty_like(x) for layer in hidden_layers if layer >= 0}
        if -1 in hidden_layers:
            kept[-1] = x.clone()
        self._layers.run_(x, native_step(metadata, self._rotary.at(metadata.positions)), cache.layers, kept)
        return DecoderOutput(x, kept)

    @torch.inference_mode()
    def final_norm(self, hidden: Tensor) -> Tensor:
        """See Decoder."""
        return self._ends.normalize(hidden)

    @torch.inference_mode()
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See Decoder; the next call writes over what this one gave."""
        return self._ends.project(hidden)

    def _layer(self, weights: Mapping[str, StoredWeight], number: int) -> NativeLayer:
        config, prefix = self.config, f"model.layers.{number}."
        attention = prefix + "self_attn."
        bias = qk_norm = None
        if config.attention_bias:
            bias = torch.cat([_floats(weights[f"{attention}{name}_proj.bias"]) for name in "qkv"])
        if config.qk_norm:
            norms = (
                (f"{attention}q_norm.weight", config.num_heads),
                (f"{attention}k_norm.weight", config.num_kv_heads),
            )
            qk_norm = torch.cat([_floats(weights[name]).expand(count, -1) for name, count in norms])
        return NativeLayer(
            attention_norm=_floats(weights[prefix + "input_layernorm.weight"]),
            qkv=self._packed([weights[f"{attention}{name}_proj.weight"] for name in "qkv"]),
            qkv_bias=bias,
            qk_norm=qk_norm,
            output=self._packed([weights[attention + "o_proj.weight"]]),
            mlp_norm=_floats(weights[prefix + "post_attention_layernorm.weight"]),
            gate_up=self._packed([weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up")]),
            down=self._packed([weights[prefix + "mlp.down_proj.weight"]]),
        )

    def _packed(self, parts: Sequence[StoredWeight]) -> PackedWeight:
        """Fused and packed; parts of different bits all become eight-bit ones."""
        groups = [_groups(part) for part in parts]
        fused = joined(groups)
        if fused is None:
            fused = group_weight(torch.cat([part.dense() for part in groups]))
        return pack(self._linear.library, fused)


def native_step(metadata: AttentionMetadata, rotary: tuple[Tensor, Tensor]) -> NativeStep:
    """A step's rows as the library takes them; `rotary` of their positions (RotaryTable.at), float32."""
    requests, block_ids = [], list[int]()
    for request in metadata.requests:
        first_key = metadata.pattern.first_key(request.first_position)
        requests.append((request.row_start, request.num_rows, request.first_position, first_key, len(block_ids)))
        block_ids += metadata.padded_block_ids(request, request.kv_length)
    return NativeStep(
        metadata.slots,
        *rotary,
        torch.tensor(requests, dtype=torch.int32).view(-1, 5),
        torch.tensor(block_ids, dtype=torch.int32),
        metadata.block_size,
        metadata.pattern.is_causal,
    )


def _groups(weight: StoredWeight) -> Groups:
    return weight if isinstance(weight, Groups) else group_weight(weight)


def _floats(weight: StoredWeight) -> Tensor:
    return (weight.dense() if isinstance(weight, Groups) else weight.float()).contiguous()
