"""DFlash and DSpark in the engine's executor: drafts are the oracle's, whatever happens to the request around them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from execution.running import Run, request, run, scheduler_config
from execution.watched import Watched
from models.decoder_helpers import random_tokens
from models.tiny_models import write_tiny_hf_model
from speculation.drafter_oracle import OracleDrafter
from speculation.tiny_drafters import BIDIRECTIONAL, VOCAB_SIZE, oracle_of, tiny_drafter, tiny_drafter_config

from slipstream.attention.pattern import AttentionPattern
from slipstream.config import ModelSettings
from slipstream.execution.build import build_decoder
from slipstream.execution.executor import TorchExecutor
from slipstream.models.decoder import Decoder
from slipstream.models.loading import open_model
from slipstream.request import Request
from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout
from slipstream.speculation.serving import ServingTarget

PROMPTS = {"a": random_tokens(21, 1, VOCAB_SIZE), "b": random_tokens(5, 2, VOCAB_SIZE), "c": random_tokens(33, 3, 256)}
K = 4
CAUSAL_WINDOW = AttentionPattern(is_causal=True, window=9)
WINDOW = AttentionPattern(is_causal=False, window=7)

CONFIGS: dict[str, DrafterConfig] = {
    "dspark": tiny_drafter_config(),
    "dspark fill-in, gated": tiny_drafter_config(layout=RowLayout.FILL_IN, markov=MarkovKind.GATED),
    "rnn, embedding tapped, causal window": tiny_drafter_config(
        markov=MarkovKind.RNN, target_layer_ids=(-1, 1), patterns=(CAUSAL_WINDOW, BIDIRECTIONAL)
    ),
    "window, whole vocabulary, bias, no norm": tiny_drafter_config(
        patterns=(WINDOW, BIDIRECTIONAL), draft_vocab_size=VOCAB_SIZE, attention_bias=True, qk_norm=False
    ),
    "dflash": tiny_drafter_config(
        algorithm=Algorithm.DFLASH,
        layout=RowLayout.FILL_IN,
        draft_vocab_size=VOCAB_SIZE,
        markov=MarkovKind.NONE,
        markov_rank=0,
        has_confidence=False,
        confidence_with_markov=False,
    ),
    "own embedding and head, another width": tiny_drafter_config(
        hidden_size=48, owns_embedding=True, owns_head=True, confidence_with_markov=False, rope_theta=500.0
    ),
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory = write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")
    settings = ModelSettings(dtype="float32", device="cpu", batch_invariant=True, max_model_len=256, num_threads=1)
    return build_decoder(open_model(str(directory), progress=False), settings)


def watched(decoder: Decoder, config: DrafterConfig, blocks: int = 64, size: int = 16) -> tuple[TorchExecutor, Watched]:
    inner = BlockDrafter(tiny_drafter(config, decoder.kernels), ServingTarget(decoder, blocks, size))
    drafter = Watched(inner)
    return TorchExecutor(decoder, num_kv_blocks=blocks, block_size=size, drafter=drafter, observer=inner), drafter


def plain(decoder: Decoder, requests: list[Request]) -> Run:
    return run(TorchExecutor(decoder, num_kv_blocks=64, block_size=16), scheduler_config(), requests)


def requests(temperature: float = 0.0, **other: Any) -> list[Request]:
    return [request(name, prompt, seed=5, temperature=temperature, **other) for name, prompt in PROMPTS.items()]


def configured(drafter: Drafter, **other: Any) -> Any:
    return scheduler_config(k=K, layout_name=drafter.layout.method, **other)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", CONFIGS)
def test_drafts_and_confidences_are_the_oracles(decoder: Decoder, name: str, temperature: float) -> None:
    config = CONFIGS[name]
    executor, drafter = watched(decoder, config)
    run(executor, configured(drafter), requests(temperature, max_tokens=6))
    assert executor.draft_failures == {}
    oracle = oracle_of(config)
    assert len(drafter.seen) > 6
    for asked, block in drafter.seen:
        check(oracle, asked, block)


def check(oracle: OracleDrafter, asked: DraftRequest, block: DraftBlock) -> None:
    """Fails where drafts or confidences are not the oracle's."""
    drafts, scores, _ = oracle.draft(
        asked.token_ids,
        asked.num_draft_tokens,
        temperature=asked.sampling.temperature,
        seed=asked.seed,
        choice=asked.choice_index,
        num_prompt=asked.num_prompt_tokens,
    )
    assert block.token_ids == drafts
    if scores is None:
        assert block.confidences is None
    else:
        chances = [1 / (1 + math.exp(-score)) for score in scores]
        assert block.confidences == pytest.approx(chances, abs=1e-4)


BROKEN = {
    "layer id": {"tapped": (0, 1, 1)},
    "layer order": {"tapped": (1, 0, 2)},
    "rotary base": {"theta": 5000.0},
    "position": {"block_shift": 1},
    "fill-in": {"fill_in": True},
    "mask": {"mask": 5},
    "causal": {"layers": [(False, None), (True, None)]},
    "d2t": {"target_of": list(range(40))},
    "markov head": {"bias_scale": 0.0},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_oracle_disagrees(decoder: Decoder, fault: str) -> None:
    """The comparison can fail: each deliberate fault shows."""
    config = CONFIGS["dspark"]
    executor, drafter = watched(decoder, config)
    run(executor, configured(drafter), requests(max_tokens=6))
    oracle = oracle_of(config, **BROKEN[fault])
    with pytest.raises(AssertionError):
        for asked, block in drafter.seen:
            check(oracle, asked, block)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_is_the_plain_text(decoder: Decoder, name: str, temperature: float, lag: int) -> None:
    executor, drafter = watched(decoder, CONFIGS[name])
    done = run(executor, configured(drafter), requests(temperature), lag=lag)
    assert done.texts == plain(decoder, requests(temperature)).texts
    assert done.num_verified > 20
    assert executor.draft_failures == {}


def alone(decoder: Decoder, config: DrafterConfig, temperature: float) -> dict[tuple[str, int, int], list[int]]:
    """Drafts of each request by itself, prompt whole, no cache. Without verification no position is skipped."""
    found: dict[tuple[str, int, int], list[int]] = {}
    for each in requests(temperature):
        executor, drafter = watched(decoder, config)
        run(executor, configured(drafter, enable_prefix_caching=False), [each])
        found |= drafter.drafts()
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["dspark", "dflash", "rnn, embedding tapped, causal window"])
@pytest.mark.parametrize("lag", [0, 1])
def test_drafts_are_the_same_chunked_batched_and_after_preemption(
    decoder: Decoder, name: str, temperature: float, lag: int
) -> None:
    config = CONFIGS[name]
    expected = alone(decoder, config, temperature)
    for blocks, size, budget in ((64, 16, 64), (64, 16, 7), (23, 4, 16)):
        executor, drafter = watched(decoder, config, blocks, size)
        settings = configured(
            drafter, num_kv_blocks=blocks, block_size=size, max_num_batched_tokens=budget, max_num_seqs=min(budget, 8)
        )
        done = run(executor, settings, requests(temperature), lag=lag)
        if blocks == 23:
            assert done.scheduler.statistics.num_preemptions > 0
        drafts = drafter.drafts()
        common = drafts.keys() & expected.keys()
        assert len(common) > 20
        assert {key: drafts[key] for key in common} == {key: expected[key] for key in common}


def test_drafts_are_the_same_from_the_prefix_cache(decoder: Decoder) -> None:
    config = CONFIGS["dspark"]
    executor, drafter = watched(decoder, config)
    names = ["cold", "warm"]
    first, second = (request(name, PROMPTS["c"], seed=5) for name in names)

    def later(step: int, scheduler: Any) -> None:
        if step == 12:
            scheduler.add_request(second)

    run(executor, configured(drafter), [first], before_step=later)
    assert second.num_cached_tokens == 32
    found = drafter.drafts()
    cold, warm = ({key[1:]: value for key, value in found.items() if key[0] == name} for name in names)
    assert cold == warm
    assert len(cold) > 5


def test_steps_that_do_not_draft_leave_no_holes(decoder: Decoder) -> None:
    """Context KV is written in every step: after steps with K = 0 drafts are those of a run without them."""
    config = CONFIGS["dspark"]
    expected = alone(decoder, config, 0.0)
    executor, drafter = watched(decoder, config)

    def mute(step: int, scheduler: Any) -> None:
        executor.muted = 3 <= step <= 9  # type: ignore[attr-defined]

    execute = executor.execute

    def without_drafts(plan: Any) -> Any:
        if executor.muted:  # type: ignore[attr-defined]
            for scheduled in plan.requests:
                scheduled.num_draft_tokens = 0
        return execute(plan)

    executor.execute = without_drafts  # type: ignore[method-assign]
    run(executor, configured(drafter), requests(), before_step=mute)
    drafts = drafter.drafts()
    common = {key for key in drafts.keys() & expected.keys() if key[1] > 12 + len(PROMPTS[key[0]])}
    assert len(common) > 5
    assert {key: drafts[key] for key in common} == {key: expected[key] for key in common}


def test_the_length_limit(decoder: Decoder) -> None:
    """Texts up to the last position; the table of positions ends there too."""
    config = CONFIGS["dspark fill-in, gated"]
    executor, drafter = watched(decoder, config)
    prompt = random_tokens(246, 9, VOCAB_SIZE)
    wanted = [request("long", prompt, seed=5, max_tokens=100)]
    done = run(executor, configured(drafter, max_model_len=256), wanted)
    assert executor.draft_failures == {}
    assert len(done.texts["long"]) == 10
    assert (
        done.texts
        == run(
            TorchExecutor(decoder, num_kv_blocks=64, block_size=16),
            scheduler_config(),
            [request("long", prompt, seed=5, max_tokens=100)],
        ).texts
    )
    assert torch.get_num_threads() == 1
