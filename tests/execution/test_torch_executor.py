"""TorchExecutor under the real scheduler: the same text whatever the drafter, budgets, lag or pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from execution.running import VOCAB_SIZE, Run, request, run, scheduler_config, tiny_executor
from models.decoder_helpers import random_tokens

from slipstream.request import FinishReason, Request, SamplingParams
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest
from slipstream.scheduler.scheduler import Scheduler
from slipstream.speculation.ngram import NgramDrafter
from slipstream.speculation.reference_text import ReferenceTextDrafter

PROMPTS = {"a": random_tokens(40, 1, VOCAB_SIZE), "b": random_tokens(7, 2, VOCAB_SIZE), "c": random_tokens(90, 3, 256)}
LAYOUT = LAYOUTS["ngram"]


def requests(temperature: float = 0.0) -> list[Request]:
    return [request(name, prompt, seed=5, temperature=temperature) for name, prompt in PROMPTS.items()]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny") / "llama"


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "seeded"])
def temperature(request: pytest.FixtureRequest) -> float:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def plain(directory: Path, temperature: float) -> Run:
    done = run(tiny_executor(directory), scheduler_config(), requests(temperature))
    assert [len(text) for text in done.texts.values()] == [24, 24, 24]
    return done


def drafter_named(name: str, texts: dict[str, list[int]]) -> Drafter:
    if name == "ngram":
        return NgramDrafter(1, 3)
    if name == "right":
        return ReferenceTextDrafter(LAYOUT, texts, VOCAB_SIZE)
    if name == "wrong":
        return ReferenceTextDrafter(LAYOUT, texts, VOCAB_SIZE, num_right=0)
    if name == "half":
        return ReferenceTextDrafter(LAYOUT, texts, VOCAB_SIZE, num_right=2)
    return ReferenceTextDrafter(LAYOUT, texts, VOCAB_SIZE, num_offered=lambda position: position % 4)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", ["right", "wrong", "half", "ragged", "ngram"])
def test_every_drafter_gives_the_plain_text(
    directory: Path, temperature: float, plain: Run, name: str, lag: int
) -> None:
    executor = tiny_executor(directory, drafter=drafter_named(name, plain.texts))
    done = run(executor, scheduler_config(k=4), requests(temperature), lag=lag)
    assert done.texts == plain.texts
    if name == "ngram" and temperature:
        return  # random text repeats too little to promise a match
    assert done.num_verified > 0
    if name == "wrong":
        assert done.num_accepted == 0
    else:
        assert done.num_accepted > 0
    if name == "right":
        assert done.num_accepted == done.num_verified
        assert len(done.results) < len(plain.results)


@pytest.mark.parametrize("block_size", [4, 64])
@pytest.mark.parametrize("budget", [9, 17])
def test_chunks_and_block_sizes_give_the_plain_text(
    directory: Path, temperature: float, plain: Run, block_size: int, budget: int
) -> None:
    num_blocks = 1024 // block_size
    drafter = drafter_named("half", plain.texts)
    executor = tiny_executor(directory, drafter=drafter, num_kv_blocks=num_blocks, block_size=block_size)
    config = scheduler_config(k=3, max_num_batched_tokens=budget, num_kv_blocks=num_blocks, block_size=block_size)
    done = run(executor, config, requests(temperature))
    assert done.texts == plain.texts
    assert done.num_verified > 0
    assert max(result.num_target_rows for result in done.results) <= budget


@pytest.mark.parametrize("lag", [0, 1])
def test_preemption_gives_the_plain_text(directory: Path, temperature: float, plain: Run, lag: int) -> None:
    drafter = drafter_named("half", plain.texts)
    executor = tiny_executor(directory, drafter=drafter, num_kv_blocks=44, block_size=4)
    config = scheduler_config(k=3, num_kv_blocks=44, block_size=4)
    done = run(executor, config, requests(temperature), lag=lag)
    assert done.scheduler.statistics.num_preemptions > 0
    assert done.texts == plain.texts


def test_a_shared_prefix_from_the_cache_gives_the_same_text(directory: Path) -> None:
    config = scheduler_config()
    prompt = PROMPTS["c"]
    plain = run(tiny_executor(directory), config, [request("first", prompt)])
    later = request("later", prompt)
    # One scheduler, two requests: the second finds the first one's blocks.
    both = Scheduler(config)
    fresh = tiny_executor(directory)
    both.add_request(first_again := request("first", prompt))
    texts: dict[str, list[int]] = {"first": [], "later": []}
    for step in range(200):
        if step == 10:
            both.add_request(later)
        if not both.has_work():
            break
        plan = both.schedule(float(step))
        for output in both.commit(plan, fresh.execute(plan)):
            texts[output.request_id].extend(output.new_token_ids)
    assert first_again.num_cached_tokens == 0
    assert later.num_cached_tokens >= 80
    assert texts["first"] == texts["later"] == plain.texts["first"]


def test_fast_arithmetic_serves_too(directory: Path) -> None:
    """Without batch-invariant arithmetic greedy texts agree here as well: the tiny model's logits lie well apart."""
    plain = run(tiny_executor(directory), scheduler_config(), requests())
    fast = run(tiny_executor(directory, batch_invariant=False), scheduler_config(), requests())
    assert fast.texts == plain.texts


class FaultyDrafter:
    """Wraps a drafter and fails by plan."""

    def __init__(self, inner: Drafter, *, raise_for: str | None = None, calls: range = range(0)) -> None:
        self.layout = inner.layout
        self.inner = inner
        self.raise_for = raise_for
        self.calls = calls
        self.num_calls: dict[str, int] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        for each in requests:
            if each.request_id != self.raise_for:
                continue
            self.num_calls[each.request_id] = self.num_calls.get(each.request_id, 0) + 1
            if self.num_calls[each.request_id] in self.calls:
                raise ZeroDivisionError("drafter at fault")
        return self.inner.propose(requests)

    def release(self, request_id: str) -> None:
        self.inner.release(request_id)


def test_a_drafter_that_raises_costs_its_drafts_only(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case P16."""
    plain = run(tiny_executor(directory), scheduler_config(), requests())
    # The first failing call is tried again for the request alone: calls 3 to 6 are two steps' worth.
    drafter = FaultyDrafter(drafter_named("half", plain.texts), raise_for="a", calls=range(3, 7))
    executor = tiny_executor(directory, drafter=drafter)
    with caplog.at_level(logging.WARNING):
        done = run(executor, scheduler_config(k=3), requests())
    assert done.texts == plain.texts
    assert executor.draft_failures["ZeroDivisionError"] == 4
    assert len([r for r in caplog.records if "drafter failed" in r.message]) == 1
    verified = {name: [o.num_verified for o in outputs] for name, outputs in done.outputs.items()}
    without = [i for i, count in enumerate(verified["a"]) if count == 0 and 0 < i < len(verified["a"]) - 1]
    assert len(without) == 2 and without[1] == without[0] + 1  # exactly the two steps, then drafting goes on
    assert all(count > 0 for name in "bc" for count in verified[name][1:-1])


class FixedDrafter:
    """Gives blocks as told."""

    layout = LAYOUT

    def __init__(self, block: list[int], *, num_blocks: int | None = None) -> None:
        self.block = block
        self.num_blocks = num_blocks

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        count = len(requests) if self.num_blocks is None else self.num_blocks
        return [DraftBlock(list(self.block)) for _ in range(count)]

    def release(self, request_id: str) -> None:
        raise RuntimeError("nothing to release")


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 10**9])
def test_drafts_outside_the_vocabulary_never_reach_the_embedding(directory: Path, bad: int) -> None:
    plain = run(tiny_executor(directory), scheduler_config(), requests())
    executor = tiny_executor(directory, drafter=FixedDrafter([7, bad, 8]))
    done = run(executor, scheduler_config(k=3), requests())
    assert done.texts == plain.texts
    assert executor.draft_failures["invalid_token"] > 0
    assert done.num_verified > 0
    assert max(o.num_verified for outputs in done.outputs.values() for o in outputs) == 1


def test_a_wrong_number_of_blocks_is_a_fault(directory: Path) -> None:
    plain = run(tiny_executor(directory), scheduler_config(), requests())
    executor = tiny_executor(directory, drafter=FixedDrafter([7], num_blocks=1))
    done = run(executor, scheduler_config(k=3, max_num_seqs=8), requests())
    assert done.texts == plain.texts
    assert executor.draft_failures["wrong_block_count"] > 0


def test_drafting_is_skipped_for_requests_that_just_ended(directory: Path) -> None:
    plain = run(tiny_executor(directory), scheduler_config(), requests())
    executor = tiny_executor(directory, drafter=drafter_named("right", plain.texts))
    done = run(executor, scheduler_config(k=3), requests())
    ends = sum(1 for outputs in done.outputs.values() for o in outputs if o.finish_reason is FinishReason.LENGTH)
    assert ends == 3
    asked = sum(bool(r.num_draft_tokens) for plan in done.plans for r in plan.requests)
    drafted = sum(bool(r.num_draft_tokens) for result in done.results for r in result.results)
    skipped = sum(result.num_skipped_drafts for result in done.results)
    assert skipped > 0
    assert drafted + skipped <= asked


def test_a_text_without_usable_logits_fails_alone(directory: Path) -> None:
    """A damaged embedding row turns one request's logits to NaN; its neighbour goes on."""
    plain = run(tiny_executor(directory), scheduler_config(), [request("good", [5, 6, 7])])
    executor = tiny_executor(directory)
    damaged = 266
    assert damaged not in [5, 6, 7, *plain.texts["good"]]
    executor.decoder._embedding[damaged] = float("nan")  # tied: its logit is NaN for everyone, and stays unsampled
    done = run(executor, scheduler_config(), [request("good", [5, 6, 7]), request("bad", [5, damaged])])
    assert done.outputs["bad"][-1].finish_reason is FinishReason.ERROR
    assert "logits" in (done.outputs["bad"][-1].error or "")
    assert done.texts["good"] == plain.texts["good"]


def test_times_and_rows_are_reported(directory: Path) -> None:
    done = run(tiny_executor(directory, drafter=NgramDrafter(1, 3)), scheduler_config(k=2), requests())
    assert all(result.target_ms > 0 and result.draft_ms >= 0 for result in done.results)
    assert sum(r.num_target_rows for r in done.results) >= sum(len(p) for p in PROMPTS.values())
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("lag", [0, 1])
def test_L5_a_prompt_has_the_logprobs_that_its_tokens_had_when_they_were_made(directory: Path, lag: int) -> None:
    """In chunks of 17 rows, to the bit: this executor is batch-invariant."""
    config = scheduler_config(max_num_batched_tokens=17)
    executor = tiny_executor(directory)
    first = run(executor, config, [request("a", PROMPTS["a"], temperature=1.0, logprobs=3)], lag=lag)
    text = first.texts["a"]
    made = [entry for output in first.outputs["a"] for entry in output.logprobs or ()]
    again = Request(
        "b",
        [*PROMPTS["a"], *text],
        SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=3),
        reads_prefix_cache=False,
    )
    outputs = run(executor, config, [again], lag=lag).outputs["b"]
    reported = outputs[0].prompt_logprobs
    assert reported is not None and len(reported) == len(PROMPTS["a"]) + len(text) - 1
    assert reported[len(PROMPTS["a"]) - 1 :] == made
    assert outputs[1].prompt_logprobs is None
