"""A draft model that is the target itself: every draft must be right, whatever happened to its KV in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from execution.running import VOCAB_SIZE, request, run, scheduler_config
from models.decoder_helpers import random_tokens
from models.tiny_models import write_tiny_hf_model

from slipstream.config import ModelSettings, SettingError, SpeculativeSettings
from slipstream.execution.build import build_decoder, executor_around
from slipstream.execution.executor import TorchExecutor
from slipstream.models.config import ModelLoadError
from slipstream.models.decoder import Decoder
from slipstream.models.loading import open_model
from slipstream.request import Request
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource

SETTINGS = ModelSettings(dtype="float32", device="cpu", batch_invariant=True, max_model_len=256, num_threads=1)
PROMPTS = {"a": random_tokens(40, 1, VOCAB_SIZE), "b": random_tokens(7, 2, VOCAB_SIZE), "c": random_tokens(90, 3, 256)}
K = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")


@pytest.fixture(scope="module")
def decoder(target: Path) -> Decoder:
    return build_decoder(open_model(str(target), progress=False), SETTINGS)


def opened(directory: Path, **other: Any) -> DrafterSource:
    source = open_drafter(SpeculativeSettings(method="draft_model", model=str(directory), **other))
    assert source is not None
    return source


def requests(temperature: float) -> list[Request]:
    return [request(name, prompt, seed=5, temperature=temperature) for name, prompt in PROMPTS.items()]


def plain(decoder: Decoder, wanted: list[Request]) -> dict[str, list[int]]:
    return run(TorchExecutor(decoder, num_kv_blocks=64, block_size=16), scheduler_config(), wanted).texts


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("blocks", "size", "budget"), [(64, 16, 64), (64, 16, 11), (44, 4, 64)])
def test_the_target_as_its_own_drafter_is_always_right(
    target: Path, decoder: Decoder, temperature: float, lag: int, blocks: int, size: int, budget: int
) -> None:
    executor = executor_around(decoder, blocks, size, opened(target))
    config = scheduler_config(
        k=K, num_kv_blocks=blocks, block_size=size, max_num_batched_tokens=budget, layout_name="draft_model"
    )
    done = run(executor, config, requests(temperature), lag=lag)
    assert done.texts == plain(decoder, requests(temperature))
    assert executor.draft_failures == {}
    assert done.num_accepted == done.num_verified > 30
    if size == 4:
        assert done.scheduler.statistics.num_preemptions > 0


def test_drafts_stay_right_after_a_prefix_hit(target: Path, decoder: Decoder) -> None:
    executor = executor_around(decoder, 64, 16, opened(target))
    later = request("later", PROMPTS["c"], seed=5)

    def add(step: int, scheduler: Any) -> None:
        if step == 4:
            scheduler.add_request(later)

    config = scheduler_config(k=K, layout_name="draft_model", max_num_batched_tokens=128)
    done = run(executor, config, [request("first", PROMPTS["c"], seed=5)], before_step=add)
    assert later.num_cached_tokens == 80
    assert done.texts["first"] == done.texts["later"]
    assert done.num_accepted == done.num_verified > 20


def test_another_model_drafts_and_changes_nothing(target: Path, decoder: Decoder, tmp_path: Path) -> None:
    small = write_tiny_hf_model(tmp_path / "small", num_hidden_layers=1, hidden_size=32, seed=7)
    executor = executor_around(decoder, 64, 16, opened(small, draft_sample_method="greedy"))
    config = scheduler_config(k=K, layout_name="draft_model")
    done = run(executor, config, requests(1.0))
    assert done.texts == plain(decoder, requests(1.0))
    assert executor.draft_failures == {}
    assert done.num_accepted < done.num_verified


def test_P9_a_draft_model_with_another_tokenizer_is_refused(target: Path, tmp_path: Path) -> None:
    other = write_tiny_hf_model(tmp_path / "other")
    text = json.loads((other / "tokenizer.json").read_text())
    vocabulary = text["model"]["vocab"]
    vocabulary["!"], vocabulary["+"] = vocabulary["+"], vocabulary["!"]
    (other / "tokenizer.json").write_text(json.dumps(text))
    source = opened(other)
    with pytest.raises(ModelLoadError, match="draft model other has another tokenizer than llama"):
        source.check_target(open_model(str(target), progress=False))
    opened(target).check_target(open_model(str(target), progress=False))


def test_what_a_draft_model_needs(target: Path) -> None:
    source = opened(target)
    assert (source.settings.num_drafts, source.settings.draft_max_model_len) == (5, 512)
    with pytest.raises(SettingError, match="needs a real model"):
        source.build(None)
    with pytest.raises(SettingError, match="600 is more than the 512 positions"):
        opened(target, draft_max_model_len=600)
