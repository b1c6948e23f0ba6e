"""The factorial of exactness: every drafter, K, chunk, block size, cache setting, pool, batch, lag and temperature must
give each request the text it gets alone, without speculation, batching, chunking or caching."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from driver import drive, make_config, make_request

from slipstream.request import Request
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import Drafter, DraftRequest, Executor
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation import drafters
from slipstream.speculation.ngram import NgramDrafter

MakeExecutor = Callable[[int, int, Drafter | None], Executor]
"""(num_kv_blocks, block_size, drafter) -> executor with an empty KV pool."""

# Each scripted drafter obeys another layout, so that every kind of row accounting is met.
LAYOUT_OF = {"oracle": "dspark", "wrong": "dflash", "half": "draft_model", "eos": "pard", "ragged": "p_eagle"}
DRAFTERS = (*LAYOUT_OF, "ngram")
NUM_PROMPTS = 16
ALL_K = [pytest.param(k, marks=pytest.mark.exhaustive if k in (4, 6, 7) else ()) for k in range(1, 9)]
"""K of the factorial. CI runs the ends and what lies between them with gaps, `make test-exhaustive` every one."""


@dataclass(frozen=True)
class Cell:
    """One combination of everything but drafter and K."""

    temperature: float
    batch: int
    chunk: int
    block_size: int
    caching: bool
    preemption: bool
    lag: int


CELL_FACTORS: dict[str, Sequence[Any]] = {
    "temperature": (0.0, 1.0),
    "batch": (1, 4, 16),
    "chunk": (1, 7, 64),
    "block_size": (4, 16, 64),
    "caching": (True, False),
    "preemption": (False, True),
    "lag": (0, 1),
}
"""Of a pairwise design, for models that are too slow for all of Levels."""


@dataclass(frozen=True)
class Levels:
    """Values of each factor inside one (drafter, K) pair, all crossed."""

    temperatures: Sequence[float] = (0.0, 1.0)
    batches: Sequence[int] = (1, 5, 16)
    chunks: Sequence[int] = (1, 7, 64)
    block_sizes: Sequence[int] = (4, 16, 64)
    caching: Sequence[bool] = (True, False)
    preemption: Sequence[bool] = (False, True)
    lags: Sequence[int] = (0, 1)

    def cells(self) -> list[Cell]:
        factors = (
            self.temperatures,
            self.batches,
            self.chunks,
            self.block_sizes,
            self.caching,
            self.preemption,
            self.lags,
        )
        return [Cell(*values) for values in itertools.product(*factors)]


FEW = Levels(batches=(5,), chunks=(7,), block_sizes=(4,), caching=(True,))
"""A taste of the factorial for every run of the tests; the whole is marked slow."""


def prompts_of_few_letters(num_letters: int) -> list[list[int]]:
    """Sixteen prompts; the odd ones share a prefix, the even ones hold every letter, so that n-grams are found."""
    letters = min(num_letters, 11)
    shared = [token % letters for token in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3)]
    everything = [(token * 7) % letters for token in range(letters)]
    result = []
    for index in range(NUM_PROMPTS):
        tail = [(index * 7 + j * j) % letters for j in range(1 + index % 5)]
        turn = index % 3
        result.append(shared + tail if index % 2 else tail + everything[turn:] + everything[:turn])
    return result


@dataclass
class Factorial:
    """One model under test; keeps the reference texts.

    `logit_bias` may hold a model of many tokens to a few, so that n-grams are found in sampled texts too.
    """

    make_executor: MakeExecutor
    vocab_size: int
    eos: int
    prompts: list[list[int]]
    max_model_len: int = 64
    output_tokens: int = 9
    logit_bias: dict[int, float] = field(default_factory=dict)
    _references: dict[float, dict[str, list[int]]] = field(default_factory=dict)

    def request(self, index: int, temperature: float) -> Request:
        return make_request(
            f"r{index}-",
            self.prompts[index],
            self.output_tokens,
            eos=(self.eos,),
            temperature=temperature,
            seed=index,
            logit_bias=self.logit_bias,
        )

    def reference(self, temperature: float) -> dict[str, list[int]]:
        """Each request alone: K = 0, the prompt whole, no cache."""
        if temperature not in self._references:
            texts: dict[str, list[int]] = {}
            num_kv_blocks = -(-self.max_model_len // 16)
            config = make_config(
                max_num_seqs=1,
                enable_prefix_caching=False,
                num_kv_blocks=num_kv_blocks,
                max_model_len=self.max_model_len,
            )
            for index in range(len(self.prompts)):
                executor = self.make_executor(num_kv_blocks, 16, None)
                texts.update(drive(Scheduler(config), executor, [self.request(index, temperature)]).token_ids)
            self._references[temperature] = texts
        return self._references[temperature]

    def drafter(self, kind: str, num_speculative_tokens: int, temperature: float) -> Drafter:
        if kind == "ngram":
            return NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=3)
        layout, vocab_size = LAYOUTS[LAYOUT_OF[kind]], self.vocab_size
        if kind == "eos":
            return drafters.ConstantDrafter(layout, self.eos)
        texts = self.reference(temperature)

        def predict(request: DraftRequest, prefix: list[int]) -> int:
            text = texts[request.request_id]
            position = len(prefix) - request.num_prompt_tokens
            return text[position] if position < len(text) else 0

        if kind == "ragged":
            return drafters.ragged(layout, predict, vocab_size, num_speculative_tokens)
        if kind == "half":
            return drafters.half(layout, predict, vocab_size, max(num_speculative_tokens // 2, 1))
        make = drafters.oracle if kind == "oracle" else drafters.wrong
        return make(layout, predict, vocab_size)

    def run(self, kind: str, num_speculative_tokens: int, levels: Levels) -> str:
        """All cells for one drafter and K (0 is without a drafter); gives a line for the log."""
        cells = levels.cells()
        counts = [self.run_cell(kind, num_speculative_tokens, cell) for cell in cells]
        num_ids, num_verified = (sum(column) for column in zip(*counts, strict=True))
        return (
            f"{kind} K={num_speculative_tokens}: {len(cells)} runs, {num_ids} ids, 0 differ; "
            f"{num_verified} drafts verified"
        )

    def run_cell(self, kind: str, num_speculative_tokens: int, cell: Cell) -> tuple[int, int]:
        """Fails where a text differs, and where nothing was verified; gives (ids compared, drafts verified)."""
        row = f"{kind} K={num_speculative_tokens} {cell}"
        # A pool for one request and a half makes the others give way, again and again.
        tokens = self.max_model_len * 3 // 2 if cell.preemption else NUM_PROMPTS * self.max_model_len
        num_kv_blocks = max(tokens // cell.block_size, -(-self.max_model_len // cell.block_size))
        drafter = self.drafter(kind, num_speculative_tokens, cell.temperature) if num_speculative_tokens else None
        scheduler = Scheduler(
            make_config(
                max_num_batched_tokens=64,
                max_num_seqs=cell.batch,
                max_model_len=self.max_model_len,
                block_size=cell.block_size,
                num_kv_blocks=num_kv_blocks,
                layout_name=drafter.layout.method if drafter else "ngram",
                num_speculative_tokens=num_speculative_tokens,
                enable_prefix_caching=cell.caching,
                long_prefill_token_threshold=cell.chunk,
            )
        )
        executor = self.make_executor(num_kv_blocks, cell.block_size, drafter)
        requests = [self.request(index, cell.temperature) for index in range(cell.batch)]
        run = drive(scheduler, executor, requests, lag=cell.lag)
        reference = self.reference(cell.temperature)
        for request in requests:
            assert run.token_ids[request.request_id] == reference[request.request_id], (row, request)
        assert scheduler.kv.pool.num_used == 0, row
        if num_speculative_tokens:
            assert run.num_verified > 0, f"nothing was verified: {row}"
        return sum(map(len, run.token_ids.values())), run.num_verified
