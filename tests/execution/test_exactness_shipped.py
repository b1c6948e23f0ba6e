"""Design 5 with the drafter that ships, alone and behind n-grams, on the embedded model, as it is served and (`make
test-exhaustive`) in PyTorch in `batch_invariant` mode: a pairwise design over every factor, 0 differing ids; and its
drafts are those of each request alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from driver import drive, make_config
from execution.watched import Watched
from factorial import CELL_FACTORS, Cell, Factorial
from pairwise import pairwise_rows

from slipstream.config import EMBEDDED_MODEL, ModelSettings, SpeculativeSettings
from slipstream.execution.build import build_decoder, executor_around
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import Drafter
from slipstream.scheduler.scheduler import Scheduler
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource, ServingDrafter, ServingTarget
from slipstream.speculation.shipped import shipped_drafters

MAX_MODEL_LEN = 96
K = 5
METHODS = {
    "dspark": SpeculativeSettings(method="dspark"),
    "chain": SpeculativeSettings(method="chain", drafters=("ngram", "dspark")),
}
FACTORS = {
    "kind": tuple(METHODS),
    "num_speculative_tokens": (1, 2, 3, 5),
    **CELL_FACTORS,
}
ROWS = pairwise_rows(FACTORS)
TEXTS = (
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "Write a short story about a fox who lives near a river.",
    "The capital of France is",
    "Question: Tom has 3 apples and buys 4 more. How many has he?\nAnswer:",
)
TURNS = ("", " Please go on.", " Be brief.", " Explain it.")

Drafts = dict[tuple[str, int, int], list[int]]


@dataclass
class WatchedSource:
    """A DrafterSource whose drafter, once built, is watched."""

    inner: DrafterSource
    watched: Watched | None = None

    @property
    def settings(self) -> SpeculativeSettings:
        return self.inner.settings

    @property
    def layout(self) -> DraftLayout:
        return self.inner.layout

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.inner.kv_bytes_per_token(dtype)

    def build(self, target: ServingTarget | None) -> ServingDrafter:
        built = self.inner.build(target)
        self.watched = Watched(built.drafter)
        return ServingDrafter(self.watched, built.observer)

    def drafts(self) -> Drafts:
        """See Watched."""
        assert self.watched is not None
        return self.watched.drafts()


def shipped(kind: str, num_speculative_tokens: int) -> WatchedSource:
    [folder] = [drafter.folder for drafter in shipped_drafters() if drafter.target.name == EMBEDDED_MODEL]
    settings = replace(METHODS[kind], model=str(folder), num_speculative_tokens=num_speculative_tokens)
    source = open_drafter(settings)
    assert source is not None
    return WatchedSource(source)


class ShippedFactorial(Factorial):
    """The factorial with the drafter that ships."""

    last: WatchedSource

    def drafter(self, kind: str, num_speculative_tokens: int, temperature: float) -> Drafter:
        self.last = shipped(kind, num_speculative_tokens)
        return self.last  # type: ignore[return-value]


@pytest.fixture(scope="module", params=["auto", pytest.param("none", marks=pytest.mark.exhaustive)])
def factorial(request: pytest.FixtureRequest) -> ShippedFactorial:
    source = open_model(EMBEDDED_MODEL, progress=False)
    settings = ModelSettings(
        device="cpu", batch_invariant=True, max_model_len=MAX_MODEL_LEN, quantization=request.param
    )
    decoder = build_decoder(source, settings)

    def make_executor(num_kv_blocks: int, block_size: int, drafter: Drafter | None) -> TorchExecutor:
        return executor_around(decoder, num_kv_blocks, block_size, drafter)  # type: ignore[arg-type]

    prompts = [source.tokenizer.encode(text + turn) for turn in TURNS for text in TEXTS]
    return ShippedFactorial(
        make_executor, source.config.vocab_size, source.config.eos_token_ids[0], prompts, MAX_MODEL_LEN, 16
    )


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_the_shipped_drafter_never_changes_the_text(factorial: ShippedFactorial, row) -> None:
    values = dict(row)
    kind, num_speculative_tokens = values.pop("kind"), values.pop("num_speculative_tokens")
    num_ids, num_verified = factorial.run_cell(kind, num_speculative_tokens, Cell(**values))
    print(f"\n{row}: {num_ids} ids, 0 differ; {num_verified} drafts verified")


def alone(factorial: ShippedFactorial, num_requests: int, temperature: float) -> Drafts:
    """Drafts of each request by itself, prompt whole, no cache."""
    found: Drafts = {}
    for index in range(num_requests):
        source = shipped("dspark", K)
        config = make_config(
            max_num_seqs=1,
            max_model_len=MAX_MODEL_LEN,
            layout_name=source.layout.method,
            num_speculative_tokens=K,
            enable_prefix_caching=False,
        )
        executor = factorial.make_executor(config.num_kv_blocks, config.block_size, source)  # type: ignore[arg-type]
        drive(Scheduler(config), executor, [factorial.request(index, temperature)])
        found |= source.drafts()
    return found


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_the_same_cold_warm_chunked_batched_and_after_preemption(
    factorial: ShippedFactorial, temperature: float
) -> None:
    expected = alone(factorial, 4, temperature)
    for cell in (
        Cell(temperature, batch=16, chunk=64, block_size=4, caching=True, preemption=False, lag=0),
        Cell(temperature, batch=16, chunk=7, block_size=4, caching=False, preemption=True, lag=1),
        Cell(temperature, batch=16, chunk=1, block_size=16, caching=True, preemption=True, lag=0),
    ):
        factorial.run_cell("dspark", K, cell)
        drafts = factorial.last.drafts()
        common = drafts.keys() & expected.keys()
        assert len(common) > 12
        assert {key: drafts[key] for key in common} == {key: expected[key] for key in common}
