"""Design 5 on a real (tiny, random, float32) model in `batch_invariant` mode: the factorial, 0 differing ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from factorial import ALL_K, DRAFTERS, FEW, Factorial, Levels, prompts_of_few_letters
from models.tiny_models import EOS_TOKEN_ID, write_tiny_hf_model

from slipstream.config import ModelSettings
from slipstream.execution.build import build_decoder
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model

MAX_MODEL_LEN = 64
LEVELS = Levels(batches=(1, 16))


@pytest.fixture(scope="module")
def factorial(tmp_path_factory: pytest.TempPathFactory) -> Factorial:
    directory = tmp_path_factory.mktemp("tiny") / "qwen3"
    write_tiny_hf_model(Path(directory), "qwen3")
    source = open_model(str(directory), progress=False)
    settings = ModelSettings(
        dtype="float32", device="cpu", batch_invariant=True, max_model_len=MAX_MODEL_LEN, num_threads=1
    )
    decoder = build_decoder(source, settings)

    def make_executor(num_kv_blocks, block_size, drafter) -> TorchExecutor:
        return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size, drafter=drafter)

    vocab_size = source.config.vocab_size
    letters = {token: 30.0 for token in range(11) if token != EOS_TOKEN_ID}
    return Factorial(
        make_executor,
        vocab_size,
        EOS_TOKEN_ID,
        prompts_of_few_letters(vocab_size),
        MAX_MODEL_LEN,
        logit_bias=letters,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("num_speculative_tokens", ALL_K)
def test_speculation_never_changes_the_text(factorial: Factorial, kind: str, num_speculative_tokens: int) -> None:
    print("\n" + factorial.run(kind, num_speculative_tokens, LEVELS))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_speculation_never_changes_the_text_in_short(factorial: Factorial, kind: str) -> None:
    print("\n" + factorial.run(kind, 4, FEW))


@pytest.mark.slow
def test_without_speculation_batching_never_changes_the_text(factorial: Factorial) -> None:
    print("\n" + factorial.run("none", 0, LEVELS))
