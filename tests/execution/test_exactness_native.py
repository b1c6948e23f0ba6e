"""Design 5 on the native kernels: a pairwise design over drafters, K, instructions, threads and every other factor, on
tiny models of all three shapes; 0 ids differ from those of the fastest instructions on one thread."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from factorial import CELL_FACTORS, DRAFTERS, Cell, Factorial, prompts_of_few_letters
from models.tiny_models import EOS_TOKEN_ID, write_tiny_hf_model
from pairwise import pairwise_rows

from slipstream.execution.executor import TorchExecutor
from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers, open_library
from slipstream.models.loading import ModelSource, open_model
from slipstream.models.native_decoder import NativeDecoder
from slipstream.scheduler.protocol import Drafter

MAX_MODEL_LEN = 64
ARCHITECTURES = ("llama", "qwen2", "qwen3")
FACTORS = {
    "architecture": ARCHITECTURES,
    "path": ("plain", "best"),
    "num_threads": (1, 2),
    "kind": DRAFTERS,
    "num_speculative_tokens": (1, 2, 3, 4, 5, 6, 7, 8),
    **CELL_FACTORS,
}
ROWS = pairwise_rows(FACTORS)


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    found = open_library()
    if found is None:
        pytest.skip("the native library was not built (no C++ compiler)")
    return found


@dataclass
class NativeFactorials:
    """A factorial per architecture, whose executors run as `path` and `num_threads` say when they are made."""

    folder: Path
    library: NativeLibrary
    path: InstructionPath
    num_threads: int = 1

    def __post_init__(self) -> None:
        self._decoders: dict[tuple[str, InstructionPath, int], NativeDecoder] = {}
        self._sources: dict[str, ModelSource] = {}
        self.of: dict[str, Factorial] = {}
        for architecture in ARCHITECTURES:
            directory = write_tiny_hf_model(self.folder / architecture, architecture)
            self._sources[architecture] = open_model(str(directory), progress=False)
            self.of[architecture] = self._factorial(architecture)
            for temperature in (0.0, 1.0):
                self.of[architecture].reference(temperature)

    def _factorial(self, architecture: str) -> Factorial:
        vocab_size = self._sources[architecture].config.vocab_size

        def make_executor(num_kv_blocks: int, block_size: int, drafter: Drafter | None) -> TorchExecutor:
            decoder = self._decoder(architecture)
            return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size, drafter=drafter)

        letters = {token: 30.0 for token in range(11) if token != EOS_TOKEN_ID}
        prompts = prompts_of_few_letters(vocab_size)
        return Factorial(make_executor, vocab_size, EOS_TOKEN_ID, prompts, MAX_MODEL_LEN, logit_bias=letters)

    def _decoder(self, architecture: str) -> NativeDecoder:
        key = (architecture, self.path, self.num_threads)
        if key not in self._decoders:
            source = self._sources[architecture]
            workers = Workers(self.library, self.num_threads)
            weights = source.load_stored()
            self._decoders[key] = NativeDecoder(source.config, weights, workers=workers, path=self.path)
        return self._decoders[key]


@pytest.fixture(scope="module")
def factorials(library: NativeLibrary, tmp_path_factory: pytest.TempPathFactory) -> NativeFactorials:
    return NativeFactorials(tmp_path_factory.mktemp("tiny"), library, library.best_path)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_speculation_never_changes_the_text(factorials: NativeFactorials, row) -> None:
    values = dict(row)
    factorials.path = InstructionPath.PLAIN if values.pop("path") == "plain" else factorials.library.best_path
    factorials.num_threads = values.pop("num_threads")
    factorial = factorials.of[values.pop("architecture")]
    kind, num_speculative_tokens = values.pop("kind"), values.pop("num_speculative_tokens")
    num_ids, num_verified = factorial.run_cell(kind, num_speculative_tokens, Cell(**values))
    print(f"\n{row}: {num_ids} ids, 0 differ; {num_verified} drafts verified")


@pytest.mark.parametrize(("path", "batch"), list(product(InstructionPath, (1, 16))))
def test_batches_without_speculation_never_change_the_text(
    factorials: NativeFactorials, path: InstructionPath, batch: int
) -> None:
    if path > factorials.library.best_path:
        pytest.skip(f"this processor has no {path.name}")
    factorials.path, factorials.num_threads = path, 2
    for architecture in ARCHITECTURES:
        cell = Cell(1.0, batch, chunk=7, block_size=4, caching=True, preemption=True, lag=1)
        assert factorials.of[architecture].run_cell("none", 0, cell)[0] > 0
