"""Design 5 with block drafters and chains on a real (tiny, random) model: the factorial, 0 differing ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from factorial import ALL_K, FEW, Factorial, Levels, prompts_of_few_letters
from models.tiny_models import EOS_TOKEN_ID, write_tiny_hf_model
from speculation.tiny_drafters import VOCAB_SIZE, tiny_drafter_config, tiny_drafter_weights

from slipstream.config import ModelSettings
from slipstream.execution.build import build_decoder
from slipstream.execution.executor import TorchExecutor
from slipstream.models.decoder import Decoder
from slipstream.models.loading import open_model
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.chain import ChainDrafter
from slipstream.speculation.drafter_config import Algorithm, DrafterConfig, MarkovKind, RowLayout
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.ngram import NgramDrafter
from slipstream.speculation.serving import ServingTarget, TargetStates

MAX_MODEL_LEN = 64
NUM_LETTERS = 11

CONFIGS: dict[str, DrafterConfig] = {
    "dspark": tiny_drafter_config(block_size=8, draft_vocab_size=NUM_LETTERS),
    "dspark fill-in": tiny_drafter_config(
        block_size=9, draft_vocab_size=NUM_LETTERS, layout=RowLayout.FILL_IN, markov=MarkovKind.RNN
    ),
    "dflash": tiny_drafter_config(
        block_size=9,
        draft_vocab_size=NUM_LETTERS,
        algorithm=Algorithm.DFLASH,
        layout=RowLayout.FILL_IN,
        markov=MarkovKind.NONE,
        markov_rank=0,
        has_confidence=False,
        confidence_with_markov=False,
    ),
}
KINDS = (*CONFIGS, "chain")


@dataclass
class LateDrafter:
    """A block drafter, alone or behind n-grams, that is built once the size of the KV pool is known."""

    config: DrafterConfig
    is_chained: bool
    parts: Mapping[str, Drafter] = field(default_factory=dict)
    block: BlockDrafter | None = None
    drafter: Drafter | None = None

    @property
    def layout(self) -> DraftLayout:
        return self.config.draft_layout

    @property
    def tapped_layers(self) -> Sequence[int]:
        return self.config.target_layer_ids

    def build(self, target: ServingTarget) -> None:
        model = DrafterModel(self.config, kernels=target.decoder.kernels)
        weights = tiny_drafter_weights(self.config)
        weights["d2t"] = torch.zeros_like(weights["d2t"])  # the letters themselves
        model.load_state_dict(weights)
        self.drafter = self.block = BlockDrafter(model, target)
        if self.is_chained:
            self.drafter = ChainDrafter({"ngram": NgramDrafter(3, 3), "dspark": self.block}, self.layout)

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        assert self.drafter is not None
        return self.drafter.propose(requests)

    def release(self, request_id: str) -> None:
        assert self.drafter is not None
        self.drafter.release(request_id)

    def observe(self, states: TargetStates) -> None:
        assert self.block is not None
        self.block.observe(states)


class BlockFactorial(Factorial):
    """The factorial whose drafters are models."""

    def drafter(self, kind: str, num_speculative_tokens: int, temperature: float) -> Drafter:
        return LateDrafter(CONFIGS["dspark" if kind == "chain" else kind], kind == "chain")  # type: ignore[return-value]


def executor_with(decoder: Decoder, num_kv_blocks: int, block_size: int, drafter: Drafter | None) -> TorchExecutor:
    if not isinstance(drafter, LateDrafter):
        return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size)
    drafter.build(ServingTarget(decoder, num_kv_blocks, block_size))
    return TorchExecutor(decoder, num_kv_blocks=num_kv_blocks, block_size=block_size, drafter=drafter, observer=drafter)


@pytest.fixture(scope="module")
def factorial(tmp_path_factory: pytest.TempPathFactory) -> BlockFactorial:
    directory = write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")
    settings = ModelSettings(
        dtype="float32", device="cpu", batch_invariant=True, max_model_len=MAX_MODEL_LEN, num_threads=1
    )
    decoder = build_decoder(open_model(str(directory), progress=False), settings)

    def make_executor(num_kv_blocks: int, block_size: int, drafter: Drafter | None) -> TorchExecutor:
        return executor_with(decoder, num_kv_blocks, block_size, drafter)

    letters = {token: 30.0 for token in range(NUM_LETTERS) if token != EOS_TOKEN_ID}
    return BlockFactorial(
        make_executor,
        VOCAB_SIZE,
        EOS_TOKEN_ID,
        prompts_of_few_letters(VOCAB_SIZE),
        MAX_MODEL_LEN,
        logit_bias=letters,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_speculative_tokens", ALL_K)
def test_block_drafters_never_change_the_text(
    factorial: BlockFactorial, kind: str, num_speculative_tokens: int
) -> None:
    levels = Levels(batches=(1, 5), chunks=(7, 64), block_sizes=(4, 16))
    print("\n" + factorial.run(kind, num_speculative_tokens, levels))


@pytest.mark.parametrize("kind", KINDS)
def test_block_drafters_never_change_the_text_in_short(factorial: BlockFactorial, kind: str) -> None:
    print("\n" + factorial.run(kind, 4, FEW))
