"""Native sampling gives the very tokens that the sampler gives without it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from slipstream.kernels.native.library import InstructionPath, NativeLibrary, Workers
from slipstream.kernels.native.sampling import NativeRowSampler
from slipstream.request import SamplingParams
from slipstream.sampling.noise import gumbel
from slipstream.sampling.sampler import LogitsError, Sampler, first_argmax
from slipstream.scheduler.protocol import SampleRow


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sample_row(sampling: SamplingParams, seed: int, output: int = 0) -> SampleRow:
    return SampleRow(sampling, seed, 0, frozenset(), [1] * (output + 1), 1, [], 0)


def samplers(workers: Workers, vocab_size: int, path: InstructionPath | None = None) -> tuple[Sampler, Sampler]:
    """With the native library, and without."""
    return Sampler(vocab_size, row_sampler=NativeRowSampler(workers, vocab_size, path)), Sampler(vocab_size)


@pytest.mark.parametrize("vocab_size", [1, 7, 255, 256, 257, 512, 1000])
def test_argmax_takes_the_first_of_equals(workers: Workers, path: InstructionPath, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randint(-3, 4, (70, vocab_size), generator=generator).float()
    logits[0] = 0.0
    logits[1] = -logits[1].abs() * 0.0  # zeros of both signs are equal
    logits[1, 0] = -0.0
    native = NativeRowSampler(workers, vocab_size, path)
    found = native.sample(logits, [0.0] * 70, [0] * 70)
    assert found == [row.index(max(row)) for row in logits.tolist()]
    assert found == first_argmax(logits)[0].tolist()


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 0.02, 0.7, 1.0, 3.0, 100.0, 1e300])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 8.0, 1e30])
def test_a_draw_is_the_definition(workers: Workers, path: InstructionPath, temperature: float, spread: float) -> None:
    """Against float64 scores of every token, which know no narrowing."""
    vocab_size, num_rows = 301, 12
    logits = random((num_rows, vocab_size), 5) * spread
    keys = [key * 0x9E3779B97F4A7C15 % 2**64 for key in range(num_rows)]
    expected = []
    for row, key in zip(logits.tolist(), keys, strict=True):
        scores = [(logit - max(row)) / temperature + gumbel(key, token) for token, logit in enumerate(row)]
        expected.append(scores.index(max(scores)))
    assert NativeRowSampler(workers, vocab_size, path).sample(logits, [temperature] * num_rows, keys) == expected


@pytest.mark.parametrize("shape", ["flat", "model", "sharp"])
def test_a_hundred_thousand_draws_are_the_twins(library: NativeLibrary, shape: str) -> None:
    """33 400 draws of each shape: many seeds over logits of a few rows, 8 191 tokens."""
    vocab_size, num_rows = 8_191, 200
    spread = {"flat": 0.05, "model": 3.0, "sharp": 12.0}[shape]
    native, twin = samplers(Workers(library, 2), vocab_size)
    logits = random((num_rows, vocab_size), 17) * spread
    sampling = [SamplingParams(temperature=temperature) for temperature in (1.0, 0.6, 1.7)]
    distinct = set()
    for batch in range(167):
        rows = [sample_row(sampling[i % 3], seed=batch * num_rows + i) for i in range(num_rows)]
        found = native.sample(logits, rows).token_ids
        assert found == twin.sample(logits, rows).token_ids
        distinct.update(found)
    assert len(distinct) > (20 if shape == "sharp" else 500)


class UpTo:
    """A TokenMatcher under which the tokens below a limit fit; without one it asks for nothing yet."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit

    def allowed(self, output: Sequence[int]) -> bytes | None:
        """See TokenMatcher."""
        return None if self.limit is None else ((1 << self.limit) - 1).to_bytes(32, "little")

    def num_legal(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """See TokenMatcher."""
        return len(drafts)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_constrained_rows_are_the_twins(library: NativeLibrary, temperature: float) -> None:
    vocab_size, limits = 256, [None, 5, None, 1, 200]
    native, twin = samplers(Workers(library, 2), vocab_size)
    distinct = set()
    for seed in range(50):
        rows = [
            dataclasses.replace(sample_row(SamplingParams(temperature=temperature), seed + i), matcher=UpTo(limit))
            for i, limit in enumerate(limits)
        ]
        logits = random((len(rows), vocab_size), seed)
        found = native.sample(logits, rows).token_ids
        assert found == twin.sample(logits, rows).token_ids
        assert found[1] < 5 and found[3] == 0 and found[4] < 200
        distinct.update(found)
    assert len(distinct) > 50


def test_a_row_depends_on_itself_alone(library: NativeLibrary) -> None:
    vocab_size, num_rows = 49_152, 70
    logits = random((num_rows, vocab_size), 3) * 3
    temperatures = [0.0 if i % 4 == 0 else 0.5 + i / 40 for i in range(num_rows)]
    keys = list(range(1000, 1000 + num_rows))
    expected = NativeRowSampler(Workers(library, 1), vocab_size, InstructionPath.PLAIN).sample(
        logits, temperatures, keys
    )
    for num_threads in (1, 2, 3):
        workers = Workers(library, num_threads)
        for path in InstructionPath:
            if path > library.best_path:
                continue
            native = NativeRowSampler(workers, vocab_size, path)
            assert native.sample(logits, temperatures, keys) == expected
            for seed, size in ((1, 1), (2, 2), (3, 33)):
                order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))[:size].tolist()
                found = native.sample(logits[order], [temperatures[i] for i in order], [keys[i] for i in order])
                assert found == [expected[i] for i in order]


def test_rows_of_a_wider_table(workers: Workers, path: InstructionPath) -> None:
    """A row's neighbours in memory are not looked at."""
    table = random((5, 128), 4)
    logits = table[:, :100]
    table[:, 100:] = 1e9
    native = NativeRowSampler(workers, 100, path)
    assert native.sample(logits, [0.0, 1.0] * 2 + [0.0], [1, 2, 3, 4, 5]) == native.sample(
        logits.contiguous(), [0.0, 1.0] * 2 + [0.0], [1, 2, 3, 4, 5]
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 9, 255, 256, 511, 512, 599])
def test_rows_that_are_not_finite_are_named(workers: Workers, path: InstructionPath, value: float, place: int) -> None:
    logits = random((3, 600), 6)
    logits[1, place] = value
    for temperature in (0.0, 1.0):
        found = NativeRowSampler(workers, 600, path).sample(logits, [temperature] * 3, [1, 2, 3])
        assert found[1] == -1 and found[0] >= 0 and found[2] >= 0


def test_finite_extremes(workers: Workers, path: InstructionPath) -> None:
    logits = torch.zeros((4, 64))
    logits[0, 9], logits[1, 60], logits[2] = 3.4e38, -3.4e38, 1e-45
    logits[3, 7], logits[3, 8] = -3.4e38, 3.4e38
    native, twin = samplers(workers, 64, path)
    for temperature in (0.0, 1e-30, 1.0, 100.0):
        rows = [sample_row(SamplingParams(temperature=temperature), seed) for seed in range(4)]
        assert native.sample(logits, rows) == twin.sample(logits, rows)


KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(logprobs=0),
    SamplingParams(top_p=0.9),
    SamplingParams(top_k=3, min_p=0.01),
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
    SamplingParams(presence_penalty=0.5),
    SamplingParams(logit_bias={4: 50.0}),
)


def test_every_kind_of_row_is_sampled_as_without(workers: Workers, path: InstructionPath) -> None:
    """Also where rows hold infinities and NaN: those go the other way."""
    native, twin = samplers(workers, 1000, path)
    logits = random((60, 1000), 8) * 4
    logits[11, 3], logits[22, 4], logits[33, 5:] = math.nan, math.inf, -math.inf
    untouched = logits.clone()
    rows = [sample_row(KINDS[i % len(KINDS)], seed=i, output=i % 3) for i in range(60)]
    assert native.sample(logits, rows) == twin.sample(logits, rows)
    assert torch.equal(logits.nan_to_num(), untouched.nan_to_num())
    for dtype in (torch.float64, torch.bfloat16):
        assert native.sample(logits.to(dtype), rows) == twin.sample(logits.to(dtype), rows)
    assert native.sample(logits[:0], []) == twin.sample(logits[:0], [])


def test_rows_without_a_usable_logit_are_named(workers: Workers) -> None:
    native, _ = samplers(workers, 16)
    logits = random((4, 16), 9)
    logits[1], logits[3] = math.nan, -math.inf
    with pytest.raises(LogitsError, match=r"rows \[1, 3\]"):
        native.sample(logits, [sample_row(SamplingParams(), seed) for seed in range(4)])


def test_another_vocabulary_is_refused(workers: Workers) -> None:
    with pytest.raises(ValueError, match="logits of 17 tokens; this sampler's vocabulary has 16"):
        NativeRowSampler(workers, 16).sample(random((1, 17), 1), [0.0], [0])
