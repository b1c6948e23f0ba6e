"""A block drafter in the native library against the same network in PyTorch, over the same (dequantised) weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models.decoder_helpers import random_tokens
from models.tiny_models import write_tiny_hf_model
from speculation.tiny_drafters import BIDIRECTIONAL, VOCAB_SIZE, tiny_drafter, tiny_drafter_config

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.invariant import InvariantAttention
from slipstream.attention.metadata import AttentionMetadata, AttentionRequest, build_metadata
from slipstream.attention.pattern import AttentionPattern
from slipstream.kernels.fast import FastKernels
from slipstream.kernels.native.groups import group_weight, multiply_groups
from slipstream.kernels.native.library import Workers, open_library
from slipstream.models.loading import open_model
from slipstream.models.native_decoder import NativeDecoder
from slipstream.request import SamplingParams
from slipstream.scheduler.protocol import DraftRequest
from slipstream.speculation.draft_sampling import DraftSampler
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.heads import draw_blocks
from slipstream.speculation.native_network import NativeNetwork, network_misfit
from slipstream.speculation.network import TorchNetwork, build_network

FITTING = {"intermediate_size": 96, "markov_rank": 32}
CONFIGS = {
    "dspark": tiny_drafter_config(**FITTING),
    "windows, no norms, confidence without the token": tiny_drafter_config(
        **FITTING,
        patterns=(AttentionPattern(is_causal=False, window=7), AttentionPattern(is_causal=True, window=9)),
        qk_norm=False,
        confidence_with_markov=False,
    ),
    "own embedding and head": tiny_drafter_config(**FITTING, owns_embedding=True, owns_head=True, hidden_size=96),
    "dflash": tiny_drafter_config(
        intermediate_size=96,
        algorithm=Algorithm.DFLASH,
        layout=RowLayout.FILL_IN,
        draft_vocab_size=VOCAB_SIZE,
        markov=MarkovKind.NONE,
        markov_rank=0,
        has_confidence=False,
        confidence_with_markov=False,
        patterns=(BIDIRECTIONAL, BIDIRECTIONAL),
    ),
}
LENGTHS = (21, 5, 33)
BLOCK_SIZE = 8
K = 5


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> NativeDecoder:
    library = open_library()
    if library is None:
        pytest.skip("the native library was not built (no C++ compiler)")
    source = open_model(str(write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")), progress=False)
    # KV in float32, so that all that differs is how rows are rounded to bytes.
    return NativeDecoder(
        source.config, source.load_stored(), workers=Workers(library, 2), cache_dtype=torch.float32, num_positions=256
    )


class TwinKernels(FastKernels):
    """Products of rounded rows and weights, as the library has them, in PyTorch."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if weight.shape[0] == 1:  # the confidence head's, which is not rounded
            return super().linear(x, weight, bias)
        return multiply_groups(x.contiguous(), group_weight(weight), bias)


def cache_of(config: DrafterConfig) -> PagedKVCache:
    cpu = torch.device("cpu")
    return PagedKVCache(
        config.num_layers, 40, BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype=torch.float32, device=cpu
    )


def placed(first: list[int], rows: list[int]) -> AttentionMetadata:
    """Rows of the requests from such positions on; each request has blocks of its own, in no order."""
    requests, start = [], 0
    for index, (position, count) in enumerate(zip(first, rows, strict=True)):
        blocks = [(index * 8 + number) * 7 % 40 for number in range(8)]
        requests.append(AttentionRequest(start, count, position, blocks))
        start += count
    return build_metadata(requests, BLOCK_SIZE, 40, torch.device("cpu"))


def states_of(config: DrafterConfig, metadata: AttentionMetadata, seed: int = 3) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(metadata.slots), config.target_hidden_size)
    return {layer: torch.randn(shape, generator=generator) for layer in config.target_layer_ids}


def networks(target: NativeDecoder, config: DrafterConfig) -> tuple[NativeNetwork, TorchNetwork, DrafterModel]:
    native = build_network(tiny_drafter(config, TwinKernels()).requires_grad_(False), target)
    assert isinstance(native, NativeNetwork)
    model = tiny_drafter(config, TwinKernels()).requires_grad_(False)
    model.bind_target(target.embedding, target.head)
    return native, TorchNetwork(model, InvariantAttention(), target.num_positions), model


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    """But for single numbers between two bytes that fall to the other side, which moves what follows a little."""
    distance = (left - right).flatten(1).norm(dim=1) / right.flatten(1).norm(dim=1).clamp_min(1e-9)
    return bool(distance.max() < 0.03 and (distance < 1e-4).float().mean() > 0.5)


@pytest.mark.parametrize("name", CONFIGS)
def test_context_and_blocks_are_those_of_the_torch_network(target: NativeDecoder, name: str) -> None:
    config = CONFIGS[name]
    native, reference, _ = networks(target, config)
    ours, theirs = cache_of(config), cache_of(config)
    context = placed([0] * 3, list(LENGTHS))
    states = states_of(config, context)
    native.write_context(states, context, ours)
    with torch.inference_mode():
        reference.write_context(states, context, theirs)
    for left, right in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(left == 0, right == 0)
        assert close(left, right)
    count = config.num_block_rows(K)
    block = placed(list(LENGTHS), [count] * 3)
    token_ids = torch.tensor(random_tokens(3 * count, 9, VOCAB_SIZE))
    with torch.inference_mode():
        assert close(native.block_hidden(token_ids, block, ours), reference.block_hidden(token_ids, block, theirs))


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1e-40])
@pytest.mark.parametrize("name", CONFIGS)
def test_native_draws_are_those_of_the_loop(target: NativeDecoder, name: str, temperature: float) -> None:
    config = CONFIGS[name]
    native, _, model = networks(target, config)
    hidden = torch.randn((7, K, config.hidden_size), generator=torch.Generator().manual_seed(4))
    anchors = torch.tensor(random_tokens(7, 2, VOCAB_SIZE))
    requests = [
        DraftRequest(f"r{i}", [int(a)], K, 1, SamplingParams(temperature=temperature), i, 0)
        for i, a in enumerate(anchors)
    ]
    sampler = DraftSampler(model.target_ids, VOCAB_SIZE)
    chooser = sampler.chooser(requests)
    drawn = native.draw(hidden, anchors, chooser)
    logits = native._linear.multiply(hidden.flatten(0, 1), native._head).view(7, K, -1)
    with torch.inference_mode():
        expected = draw_blocks(logits, hidden, anchors, sampler.chooser(requests), native._markov, native._confidence)
    assert torch.equal(drawn.token_ids, expected.token_ids)
    assert len(drawn.token_ids.unique()) > 5
    if config.has_confidence:
        assert drawn.confidence_logits is not None and expected.confidence_logits is not None
        assert torch.allclose(drawn.confidence_logits, expected.confidence_logits, atol=1e-4)
    else:
        assert drawn.confidence_logits is None
    for i in range(7):  # alone, bit for bit
        alone = native.draw(hidden[i : i + 1], anchors[i : i + 1], sampler.chooser(requests[i : i + 1]))
        assert torch.equal(alone.token_ids[0], drawn.token_ids[i])
        if drawn.confidence_logits is not None:
            assert torch.equal(alone.confidence_logits[0], drawn.confidence_logits[i])


def test_a_request_alone_gets_the_bits_that_it_gets_in_a_batch(target: NativeDecoder) -> None:
    config = CONFIGS["dspark"]
    native, _, _ = networks(target, config)
    together, alone = cache_of(config), cache_of(config)
    context = placed([0] * 3, list(LENGTHS))
    states = states_of(config, context)
    native.write_context(states, context, together)
    block = placed(list(LENGTHS), [K] * 3)
    token_ids = torch.tensor(random_tokens(3 * K, 9, VOCAB_SIZE))
    hidden = native.block_hidden(token_ids, block, together)
    for index, length in enumerate(LENGTHS):
        start = sum(LENGTHS[:index])
        for first in range(0, length, 6):  # in chunks
            count = min(6, length - first)
            part = placed([0] * index + [first], [0] * index + [count])
            rows = slice(start + first, start + first + count)
            part = replace(part, requests=part.requests[index:])
            native.write_context({k: v[rows].contiguous() for k, v in states.items()}, part, alone)
        part = placed([0] * index + [length], [0] * index + [K])
        part = replace(part, requests=part.requests[index:])
        assert torch.equal(native.block_hidden(token_ids[index * K :][:K], part, alone), hidden[index * K :][:K])


def test_shapes_that_do_not_fit_run_in_pytorch(target: NativeDecoder) -> None:
    for changes in ({"intermediate_size": 80}, {"attention_bias": True}):
        config = tiny_drafter_config(**(FITTING | changes))
        assert network_misfit(config) is not None
        assert isinstance(build_network(tiny_drafter(config, TwinKernels()), target), TorchNetwork)


def test_a_narrow_markov_head_is_drawn_by_the_loop(target: NativeDecoder) -> None:
    native = build_network(tiny_drafter(tiny_drafter_config(intermediate_size=96), TwinKernels()), target)
    assert isinstance(native, NativeNetwork) and native._draw is None
