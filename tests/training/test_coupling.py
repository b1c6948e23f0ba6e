"""Acceptance in real decoding is what the coupling formula says, for coupled and for greedy drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models.tiny_models import write_tiny_hf_model
from speculation.tiny_drafters import VOCAB_SIZE, tiny_drafter_config, tiny_drafter_weights

from slipstream.bench.in_process import BenchRequest
from slipstream.bench.model_systems import ModelFactory
from slipstream.config import ModelSettings, SpeculativeSettings
from slipstream.execution.executor import TorchExecutor
from slipstream.request import SamplingParams
from slipstream.sampling.noise import noise_key
from slipstream.scheduler.protocol import SampleRow
from slipstream.speculation import draft_sampling
from slipstream.speculation.formats.checkpoint import write_drafter
from slipstream.training.coupling import MatchCollector, PositionMatches, collect_matches
from slipstream.training.measured_decoding import Decoding, measuring_settings

NUM_REQUESTS, MAX_TOKENS, CONCURRENCY = 24, 40, 12
TEMPERATURE = 2.0  # flat enough that drafts of a drafter that learned nothing are accepted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coupling")
    write_tiny_hf_model(folder / "model", eos_token_id=None)
    config = tiny_drafter_config(draft_vocab_size=200, block_size=3)
    write_drafter(folder / "drafter", config, tiny_drafter_weights(config))
    return folder


def matches(folder: Path, method: str) -> tuple[list[PositionMatches], Decoding]:
    model = ModelSettings(model=str(folder / "model"), dtype="float32", num_threads=1)
    speculative = SpeculativeSettings(
        method="dspark", model=str(folder / "drafter"), num_speculative_tokens=None, draft_sample_method=method
    )
    factory = ModelFactory(model, progress=False)
    decoding = Decoding(factory, measuring_settings(model, speculative, CONCURRENCY, verify_all=True))
    executor = decoding.system.recorder.executor
    assert isinstance(executor, TorchExecutor)
    collector = collect_matches(executor, is_coupled=method == "coupled")
    sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=TEMPERATURE, ignore_eos=True)
    prompts = torch.randint(3, VOCAB_SIZE, (NUM_REQUESTS, 5), generator=torch.Generator().manual_seed(1)).tolist()
    requests = [BenchRequest(tuple(ids), sampling, 100 + i) for i, ids in enumerate(prompts)]
    decoding.run(requests, CONCURRENCY)
    return collector.positions(), decoding


def test_measured_acceptance_is_the_formulas_and_above_that_of_greedy_drafts(folder: Path) -> None:
    coupled, decoding = matches(folder, "coupled")
    greedy, _ = matches(folder, "greedy")
    assert coupled[0].num_events > 400
    for position in (*coupled, *greedy):
        if position.num_events >= 50:
            assert abs(position.difference) < 4 * position.standard_error
    assert coupled[0].standard_error < 0.03
    assert coupled[0].measured > 2 * greedy[0].measured > 0.0
    acceptance = decoding.acceptance()
    assert acceptance is not None and acceptance.rate_by_position_reached is not None
    assert coupled[0].measured == pytest.approx(acceptance.rate_by_position_reached[0], abs=1e-9)


def test_noise_of_another_position_breaks_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        draft_sampling, "noise_key", lambda seed, choice, position: noise_key(seed, choice, position + 1)
    )
    first = matches(folder, "coupled")[0][0]
    assert first.num_events > 400
    assert first.difference < -10 * first.standard_error


def test_other_sampling_parameters_are_refused() -> None:
    row = SampleRow(SamplingParams(top_k=2), 1, 0, frozenset(), [1, 2], 1, [0], 0)
    with pytest.raises(ValueError, match="a temperature and nothing else"):
        MatchCollector(torch.arange(3), is_coupled=True).sampled(torch.zeros(1, 3), [row], [0])


def test_other_drafters_are_refused(folder: Path) -> None:
    model = ModelSettings(model=str(folder / "model"), dtype="float32", num_threads=1)
    factory = ModelFactory(model, progress=False)
    decoding = Decoding(factory, measuring_settings(model, SpeculativeSettings(method="ngram"), 1, verify_all=True))
    executor = decoding.system.recorder.executor
    assert isinstance(executor, TorchExecutor)
    with pytest.raises(ValueError, match="dflash and dspark drafters, got NgramDrafter"):
        collect_matches(executor, is_coupled=True)
