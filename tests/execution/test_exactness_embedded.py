"""Design 5 on the embedded model, as it is served and (`make test-exhaustive`) in PyTorch in `batch_invariant` mode: a
pairwise design over every factor, 0 differing ids."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from factorial import CELL_FACTORS, DRAFTERS, Cell, Factorial
from pairwise import pairs_of, pairwise_rows

from slipstream.config import EMBEDDED_MODEL, ModelSettings
from slipstream.execution.build import build_decoder
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model

MAX_MODEL_LEN = 96
FACTORS = {
    "kind": DRAFTERS,
    "num_speculative_tokens": (1, 3, 5, 8),
    **CELL_FACTORS,
}
ROWS = pairwise_rows(FACTORS)
TEXTS = (
    "one two three four one two three four one two three",
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\ndef add(a, b):\n    return",
    "Once upon a time, once upon a time, there was a",
    "Question: What is 2 + 2?\nAnswer: 4\nQuestion: What is 3 + 3?\nAnswer:",
    "red green blue red green blue red",
    "Water boils at 100 degrees. Water boils at",
    "Dear Sir or Madam,",
)
TURNS = ("", " Please go on.")


@pytest.fixture(scope="module", params=["auto", pytest.param("none", marks=pytest.mark.exhaustive)])
def factorial(request: pytest.FixtureRequest) -> Factorial:
    source = open_model(EMBEDDED_MODEL, progress=False)
    settings = ModelSettings(
        device="cpu", batch_invariant=True, max_model_len=MAX_MODEL_LEN, quantization=request.param
    )
    decoder = build_decoder(source, settings)

    def make_executor(num_kv_blocks, block_size, drafter) -> TorchExecutor:
        return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size, drafter=drafter)

    prompts = [source.tokenizer.encode(text + turn) for turn in TURNS for text in TEXTS]
    return Factorial(
        make_executor, source.config.vocab_size, source.config.eos_token_ids[0], prompts, MAX_MODEL_LEN, 12
    )


def test_the_design_covers_every_pair() -> None:
    covered = set().union(*map(pairs_of, ROWS))
    for a, b in combinations(sorted(FACTORS), 2):
        assert {(a, left, b, right) for left, right in product(FACTORS[a], FACTORS[b])} <= covered
    assert len(ROWS) < 40


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_speculation_never_changes_the_text(factorial: Factorial, row) -> None:
    values = dict(row)
    kind, num_speculative_tokens = values.pop("kind"), values.pop("num_speculative_tokens")
    num_ids, num_verified = factorial.run_cell(kind, num_speculative_tokens, Cell(**values))
    print(f"\n{row}: {num_ids} ids, 0 differ; {num_verified} drafts verified")
