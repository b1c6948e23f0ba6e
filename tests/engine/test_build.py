"""From settings to an engine: what speculates by default, and what the report says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from models.tiny_models import write_tiny_hf_model
from speculation.test_choice import NAME, ship

from slipstream.bench.model_systems import ModelFactory
from slipstream.config import ModelSettings, ResolvedSetting, Settings, SpeculativeSettings
from slipstream.engine.build import BuiltEngine, build_engine
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.llm import LLM
from slipstream.models.loading import open_model
from slipstream.request import SamplingParams
from slipstream.server.serve import speculation_line
from slipstream.speculation.choice import SHIPPED_DEFAULT

PROMPTS = ["the cat and the hat", "in the beginning"]
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "batch_invariant": True,
    "num_threads": 1,
    "num_kv_blocks": 64,
    "max_model_len": 128,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_hf_model(tmp_path_factory.mktemp("target") / "tiny"))


@pytest.fixture
def shipped(model: str, tmp_path: Path) -> Path:
    return ship(tmp_path, open_model(model, progress=False))


def built(model: str, shipped: Path, **changes: Any) -> BuiltEngine:
    return build_engine(settings_from_flat(SMALL | {"model": model} | changes), shipped=shipped)


def texts_of(engine: BuiltEngine) -> tuple[list[list[int]], int]:
    """Token ids, and how many drafts were verified on the way."""
    choices = [
        result.choices[0]
        for result in LLM.from_engine(engine).generate(PROMPTS, SamplingParams(max_tokens=24, temperature=1.0, seed=5))
    ]
    return [choice.token_ids for choice in choices], sum(
        0 if choice.metrics is None else choice.metrics.num_verified for choice in choices
    )


def default_method() -> str:
    """What the settings call the default for a model that a drafter ships for."""
    return SHIPPED_DEFAULT[0] if len(SHIPPED_DEFAULT) == 1 else "chain"


def row_of(engine: BuiltEngine) -> ResolvedSetting:
    return next(row for row in engine.resolution.report if row.name == "speculative_config")


def test_what_ships_drafts_by_default_and_changes_no_text(model: str, shipped: Path) -> None:
    with_drafter = built(model, shipped)
    assert (row_of(with_drafter).source, row_of(with_drafter).reason) == ("default", "ships with this model")
    assert NAME in row_of(with_drafter).value
    assert speculation_line(with_drafter.resolution).startswith(f"Speculation: on, method {default_method()}, K = 6")
    plain = built(model, shipped, speculative_config=None)
    assert row_of(plain).value == "none" and row_of(plain).source == "user"
    assert speculation_line(plain.resolution) == "Speculation: off because --speculative-config is none"
    texts, num_verified = texts_of(with_drafter)
    assert num_verified > 0
    assert texts_of(plain) == (texts, 0)
    assert texts_of(built(model, shipped, speculative_config="none")) == (texts, 0)


def test_other_models_keep_n_grams(model: str, tmp_path: Path) -> None:
    engine = built(model, tmp_path / "nothing")
    assert row_of(engine) == ResolvedSetting(
        "speculative_config", '{"method": "ngram"}', "default", "no drafter ships with this model"
    )
    assert speculation_line(engine.resolution).startswith("Speculation: on, method ngram, K = 5")


def test_instead_of_a_broken_shipped_drafter_n_grams_draft(model: str, shipped: Path) -> None:
    plain, _ = texts_of(built(model, shipped, speculative_config=None))
    (shipped / NAME / "model.safetensors").write_bytes(b"nothing")
    engine = built(model, shipped)
    assert texts_of(engine)[0] == plain
    assert row_of(engine).value == '{"method": "ngram"}'
    assert f"{NAME} ships with this model and cannot be used" in row_of(engine).reason
    assert speculation_line(engine.resolution).startswith("Speculation: on, method ngram, K = 5")


@pytest.mark.parametrize(
    ("asked", "layout"),
    [
        (SpeculativeSettings(method="auto"), "dspark"),
        (SpeculativeSettings(method="chain", drafters=("ngram", "dspark")), "dspark"),
        (SpeculativeSettings(method="dspark", model=NAME, num_speculative_tokens=2), "dspark"),
        (None, "ngram"),
    ],
)
def test_benchmarks_find_what_ships_too(
    model: str, shipped: Path, asked: SpeculativeSettings | None, layout: str
) -> None:
    settings = ModelSettings(model=model, dtype="float32", num_threads=1, max_model_len=128)
    factory = ModelFactory(settings, progress=False, shipped=shipped)
    config = factory.config(Settings(model=settings, speculative=asked))
    assert config.layout_name == layout
    assert config.num_speculative_tokens == (0 if asked is None else asked.num_speculative_tokens or 6)
