"""Reported faults of block drafters, and the engine as its users start it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from execution.running import request, run, scheduler_config
from execution.test_block_drafter import K, configured, plain, requests, watched
from models.decoder_helpers import random_tokens
from models.tiny_models import write_tiny_hf_model
from safetensors.torch import load_file
from speculation.make_fixtures import MEANT, write_fixture
from speculation.tiny_drafters import (
    VOCAB_SIZE,
    draft_vocabulary,
    tiny_drafter,
    tiny_drafter_config,
    tiny_drafter_weights,
)

from slipstream.config import ModelSettings, SpeculativeSettings
from slipstream.engine.build import build_engine
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.llm import LLM
from slipstream.execution.build import build_decoder, executor_around
from slipstream.execution.executor import TorchExecutor
from slipstream.models.decoder import Decoder
from slipstream.models.loading import open_model
from slipstream.request import Request, SamplingParams
from slipstream.sampling.acceptance import coupled_match_probability
from slipstream.sampling.noise import gumbel, noise_key
from slipstream.scheduler.protocol import DraftBlock, DraftRequest
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.draft_sampling import DraftSampler
from slipstream.speculation.drafter_config import Calibration, DrafterConfig
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.formats.checkpoint import write_drafter
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import ServingTarget, TargetStates

SETTINGS = ModelSettings(dtype="float32", device="cpu", batch_invariant=True, max_model_len=256, num_threads=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")


@pytest.fixture(scope="module")
def decoder(target: Path) -> Decoder:
    return build_decoder(open_model(str(target), progress=False), SETTINGS)


def drafts_of(decoder: Decoder, directory: Path, method: str) -> dict[tuple[str, int, int], list[int]]:
    """What a checkpoint drafts for the three prompts."""
    source = open_drafter_of(directory, method)
    checkpoint = source.checkpoint.load(torch.float32, torch.device("cpu"), decoder.kernels)
    executor, drafter = watched(decoder, checkpoint.config)
    inner = BlockDrafter(checkpoint, ServingTarget(decoder, 64, 16))
    drafter.inner = inner
    executor = TorchExecutor(decoder, num_kv_blocks=64, block_size=16, drafter=drafter, observer=inner)
    run(executor, configured(drafter), requests(max_tokens=8))
    return drafter.drafts()


def open_drafter_of(directory: Path, method: str) -> Any:
    return open_drafter(SpeculativeSettings(method=method, model=str(directory)))


def test_P4_the_same_weights_draft_the_same_in_both_formats(decoder: Decoder, tmp_path: Path) -> None:
    """A DeepSpec checkpoint with 0-based layer ids, and the same drafter in the speculators format, one more each."""
    meant = MEANT["deepspec-dspark"]
    deepspec = write_fixture(tmp_path / "deepspec", "deepspec-dspark")
    write_drafter(tmp_path / "speculators", meant, load_file(deepspec / "model.safetensors"))
    stored = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("deepspec", "speculators")]
    assert stored[0]["target_layer_ids"] == [0, 1, 2]
    assert stored[1]["aux_hidden_state_layer_ids"] == [1, 2, 3]
    first = drafts_of(decoder, tmp_path / "deepspec", "dspark")
    assert first == drafts_of(decoder, tmp_path / "speculators", "dspark")
    assert len(first) > 10


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_P2_every_k_up_to_the_block_gives_the_plain_text(decoder: Decoder, k: int, temperature: float) -> None:
    executor, drafter = watched(decoder, tiny_drafter_config())
    done = run(executor, scheduler_config(k=k, layout_name="dspark"), requests(temperature))
    assert done.texts == plain(decoder, requests(temperature)).texts
    assert done.num_verified > 0
    assert {len(block.token_ids) for _, block in drafter.seen} == set(range(1, k + 1))


def table_drafter(decoder: Decoder, **overrides: Any) -> tuple[DrafterModel, list[int]]:
    """A drafter whose Markov head is a table: after token t comes the next token of the draft vocabulary, in a ring."""
    config = tiny_drafter_config(
        markov_rank=VOCAB_SIZE, has_confidence=False, confidence_with_markov=False, **overrides
    )
    ring = draft_vocabulary(config).tolist()
    weights = tiny_drafter_weights(config)
    weights["markov_head.markov_w1.weight"] = 100 * torch.eye(VOCAB_SIZE)
    table = torch.zeros(config.draft_vocab_size, VOCAB_SIZE)
    for column in range(len(ring)):
        table[column, ring[column - 1]] = 1.0
    weights["markov_head.markov_w2.weight"] = table
    model = DrafterModel(config, kernels=decoder.kernels)
    model.load_state_dict(weights)
    return model, ring


@pytest.mark.parametrize("reduced", [True, False])
def test_P14_every_draft_follows_the_one_before(decoder: Decoder, reduced: bool) -> None:
    model, ring = table_drafter(decoder, **({} if reduced else {"draft_vocab_size": VOCAB_SIZE}))
    inner = BlockDrafter(model, ServingTarget(decoder, 8, 16))
    anchor = ring[3]
    asked = DraftRequest("r", [5, anchor], K, 1, SamplingParams(temperature=0.0), 0, 0, [0])
    assert inner.propose([asked])[0].token_ids == [ring[(4 + k) % len(ring)] for k in range(K)]


def test_P8_drafts_of_a_reduced_vocabulary_are_target_ids(decoder: Decoder) -> None:
    config = tiny_drafter_config(draft_vocab_size=16)
    executor, drafter = watched(decoder, config)
    run(executor, configured(drafter), requests(1.0))
    vocabulary = set(draft_vocabulary(config).tolist())
    drafted = {token for _, block in drafter.seen for token in block.token_ids}
    assert drafted <= vocabulary
    assert drafted - set(range(16)), "as draft ids these would pass unmapped"


def test_B6_context_is_observed_in_every_step(decoder: Decoder) -> None:
    """The drafter's KV of a text that came in chunks and accepted or refused drafts is that of one pass over it."""
    config = tiny_drafter_config()
    prompt = random_tokens(40, 8, 256)

    def kv_after(asked: Request, budget: int) -> tuple[list[int], list[torch.Tensor]]:
        """The text, and each layer's KV in its order."""
        executor, drafter = watched(decoder, config)
        tables: list[list[int]] = []
        propose = drafter.inner.propose

        def noting(requests: Sequence[DraftRequest]) -> list[DraftBlock]:
            tables.append(requests[0].block_ids)
            return propose(requests)

        drafter.inner.propose = noting  # type: ignore[method-assign]
        done = run(executor, configured(drafter, max_num_batched_tokens=budget), [asked])
        table = torch.tensor(tables[-1])
        text = asked.token_ids[: asked.num_prompt_tokens] + done.texts[asked.request_id]
        return text, [drafter.inner.cache.gather(layer, table) for layer in range(config.num_layers)]

    text, chunked = kv_after(request("a", prompt, seed=5), 11)
    _, whole = kv_after(request("b", text, max_tokens=3), 128)
    kept = len(text) - K - 2  # the last tokens were never drafted from
    assert kept > 50
    for one, other in zip(chunked, whole, strict=True):
        assert torch.equal(one[:kept], other[:kept])


def test_D6_equal_prompts_in_a_batch_get_equal_drafts(decoder: Decoder) -> None:
    prompts = {"A1": 1, "B": 2, "A2": 1, "C": 3, "A3": 1}
    executor, drafter = watched(decoder, tiny_drafter_config())
    batch = [request(name, random_tokens(30, seed, 256), seed=5) for name, seed in prompts.items()]
    run(executor, configured(drafter, max_num_batched_tokens=256), batch)
    found = drafter.drafts()
    alone_executor, alone = watched(decoder, tiny_drafter_config())
    run(
        alone_executor,
        configured(alone, enable_prefix_caching=False),
        [request("A", random_tokens(30, 1, 256), seed=5)],
    )
    expected = {key[1:]: value for key, value in alone.drafts().items()}
    for name in ("A1", "A2", "A3"):
        mine = {key[1:]: value for key, value in found.items() if key[0] == name}
        common = mine.keys() & expected.keys()
        assert len(common) > 5
        assert all(mine[key] == expected[key] for key in common)


def test_D17_a_drafter_that_fails_to_observe_costs_drafts_only(decoder: Decoder) -> None:
    executor, drafter = watched(decoder, tiny_drafter_config())
    observe = drafter.inner.observe
    calls = 0

    def failing(states: TargetStates) -> None:
        nonlocal calls
        calls += 1
        if calls in (3, 4):
            raise RuntimeError("no memory for context")
        observe(states)

    drafter.inner.observe = failing  # type: ignore[method-assign]
    done = run(executor, configured(drafter), requests())
    assert done.texts == plain(decoder, requests()).texts
    assert executor.draft_failures == {"RuntimeError": 2}
    assert done.num_verified > 20


def test_calibration_divides_and_shifts_the_logits_of_its_temperature(decoder: Decoder) -> None:
    plain_config = tiny_drafter_config()
    cold = Calibration(temperature=0.0, divisors=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), shifts=(-1.0, 0.0, 0.5, 1.0, 2.0, 3.0))
    warm = Calibration(temperature=1.0, divisors=(0.5,) * 6)
    config = tiny_drafter_config(calibrations=(cold, warm))
    for temperature, expected_one in ((0.0, cold), (0.3, cold), (0.9, warm), (1.5, warm)):
        blocks = []
        for each in (plain_config, config):
            inner = BlockDrafter(tiny_drafter(each, decoder.kernels), ServingTarget(decoder, 8, 16))
            asked = DraftRequest("r", [5, 9], K, 1, SamplingParams(temperature=temperature), 3, 0, [0])
            blocks.append(inner.propose([asked])[0])
        assert blocks[0].token_ids == blocks[1].token_ids
        logits = [torch.logit(torch.tensor(c, dtype=torch.float64)) for c in blocks[0].confidences or []]
        pairs = zip(logits, expected_one.divisors[:K], expected_one.shifts[:K], strict=True)
        expected = [float(torch.sigmoid(v / divisor + shift)) for v, divisor, shift in pairs]
        assert blocks[1].confidences == pytest.approx(expected, abs=1e-5)


def test_coupled_drafts_match_as_often_as_the_formula_says() -> None:
    """Over a reduced vocabulary: the noise belongs to the target's token, whatever its draft id."""
    target_ids = torch.tensor([1, 4, 5, 7, 10])
    draft_logits = torch.tensor([[0.4, 1.1, -0.3, 0.8, 0.1]])
    target_logits = torch.randn(12, generator=torch.Generator().manual_seed(0))
    sampler = DraftSampler(target_ids, 12)
    greedy = DraftSampler(target_ids, 12, method="greedy")
    whole = torch.full((12,), float("-inf"))
    whole[target_ids] = draft_logits[0]
    temperature, num_seeds = 0.8, 4000
    matches = 0
    for seed in range(num_seeds):
        asked = DraftRequest("r", [1, 2, 3], 1, 2, SamplingParams(temperature=temperature), seed, 0)
        draft = int(sampler.chooser([asked])(0, draft_logits))
        key = noise_key(seed, 0, 1)
        drawn = max(range(12), key=lambda token: float(target_logits[token]) / temperature + gumbel(key, token))
        matches += draft == drawn
        assert int(greedy.chooser([asked])(0, draft_logits)) == 4
    p, q = (torch.softmax(values.double() / temperature, 0).tolist() for values in (target_logits, whole))
    expected = coupled_match_probability(p, q)
    assert matches / num_seeds == pytest.approx(expected, abs=4 * (expected * (1 - expected) / num_seeds) ** 0.5)


def written(directory: Path, config: DrafterConfig) -> str:
    write_drafter(directory, config, tiny_drafter_weights(config))
    return str(directory)


@pytest.mark.parametrize("lag", [0, 1])
def test_the_engine_serves_with_a_block_drafter(target: Path, tmp_path: Path, lag: int) -> None:
    model = written(tmp_path, tiny_drafter_config())
    prompts = ["the cat and the hat", "a", "in the beginning"]
    texts = []
    for speculation in (None, {"method": "dspark", "model": model}):
        flat = {
            "model": str(target),
            "speculative_config": speculation,
            "dtype": "float32",
            "batch_invariant": True,
            "num_threads": 1,
            "num_kv_blocks": 64,
            "max_model_len": 128,
            "commit_lag": lag,
        }
        built = build_engine(settings_from_flat(flat))
        llm = LLM.from_engine(built)
        sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=3)
        results = llm.generate(prompts, sampling)
        texts.append([result.choices[0].token_ids for result in results])
        if speculation is not None:
            report = {row.name: row.value for row in built.resolution.report}
            assert report["speculation"] == "on"
            config = built.resolution.scheduler
            assert (config.num_speculative_tokens, config.layout_name) == (6, "dspark")
            assert sum(result.choices[0].metrics.num_verified for result in results) > 0
    assert texts[0] == texts[1]


def test_bfloat16_and_fast_arithmetic_run(target: Path, tmp_path: Path) -> None:
    """The served types: packed weights, products by PyTorch's own kernels. Drafts come, and nothing fails."""
    source = open_drafter_of(Path(written(tmp_path, tiny_drafter_config())), "dspark")
    settings = ModelSettings(dtype="bfloat16", device="cpu", max_model_len=256, num_threads=1)
    fast = build_decoder(open_model(str(target), progress=False), settings)
    executor = executor_around(fast, 64, 16, source)
    done = run(executor, scheduler_config(k=K, layout_name="dspark"), requests(1.0))
    assert executor.draft_failures == {}
    assert done.num_verified > 20
