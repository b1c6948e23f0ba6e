"""The textbook rejection rule in the engine's executor: texts have the law of the target alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from execution.running import Run, request, run, scheduler_config
from models.tiny_models import write_tiny_hf_model
from sampling.rejection_reference import Law, chi_square, part_of
from sampling.sampling_reference import chi_square_bound, make_row, processed_distribution
from speculation.tiny_drafters import tiny_drafter_config, tiny_drafter_weights

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.config import ModelSettings, SpeculativeSettings
from slipstream.execution.build import build_decoder, executor_around
from slipstream.execution.drafting import SafeDrafter
from slipstream.execution.executor import TorchExecutor
from slipstream.models.decoder import Decoder
from slipstream.models.loading import open_model
from slipstream.request import Request, SamplingParams
from slipstream.sampling.rejection import DistributionCheck, DrawnDistribution
from slipstream.scheduler.protocol import DraftBlock, DraftDistribution, Drafter, DraftRequest
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.chain import ChainDrafter
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.ngram import NgramDrafter
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import ServingTarget

PROMPT = [9, 5, 7, 6, 8, 5]
LETTERS = (5, 6, 7, 8)
NUM_DRAFT_LETTERS = 9
SAMPLING: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": len(LETTERS),
    "logit_bias": dict.fromkeys(LETTERS, 30.0),
    "ignore_eos": True,
}
SETTINGS = ModelSettings(dtype="float32", device="cpu", batch_invariant=True, max_model_len=64, num_threads=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama")


@pytest.fixture(scope="module")
def decoder(target: Path) -> Decoder:
    return build_decoder(open_model(str(target), progress=False), replace(SETTINGS, batch_invariant=False))


Spoil = Callable[[DraftBlock], DraftBlock]


def lose(block: DraftBlock) -> DraftBlock:
    """Without what its drafts were drawn from."""
    return replace(block, distributions=None)


@dataclass
class Wrapped:
    """A drafter whose blocks for one request are spoilt."""

    inner: Drafter
    loser: str = ""
    spoil: Spoil = lose

    def __post_init__(self) -> None:
        self.layout = self.inner.layout

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        return [
            self.spoil(block) if asked.request_id == self.loser else block
            for asked, block in zip(requests, self.inner.propose(requests), strict=True)
        ]

    def release(self, request_id: str) -> None:
        self.inner.release(request_id)


def executor_of(
    decoder: Decoder,
    *,
    num_kv_blocks: int = 128,
    block_size: int = 16,
    ngrams: bool = False,
    loser: str = "",
    spoil: Spoil = lose,
    needs_distributions: bool = True,
) -> TorchExecutor:
    """A tiny DSpark drafter that knows the first few tokens only, judged by the textbook rule."""
    config = tiny_drafter_config(draft_vocab_size=NUM_DRAFT_LETTERS)
    weights = tiny_drafter_weights(config)
    weights["d2t"] = torch.zeros_like(weights["d2t"])
    model = DrafterModel(config, kernels=decoder.kernels)
    model.load_state_dict(weights)
    block = BlockDrafter(model, ServingTarget(decoder, num_kv_blocks, block_size), sample_method="probabilistic")
    drafter: Drafter = Wrapped(block, loser, spoil)
    if ngrams:
        drafter = ChainDrafter({"ngram": NgramDrafter(2, 4), "dspark": block}, block.layout)
    return TorchExecutor(
        decoder,
        num_kv_blocks=num_kv_blocks,
        block_size=block_size,
        drafter=drafter,
        observer=block,
        needs_distributions=needs_distributions,
    )


def requests(count: int, max_tokens: int, **other: Any) -> list[Request]:
    return [
        request(f"r{seed}", PROMPT, seed=seed, max_tokens=max_tokens, **(SAMPLING | other)) for seed in range(count)
    ]


def config_of(k: int, **other: Any) -> Any:
    values = {"num_kv_blocks": 128, "max_num_seqs": 64, "max_num_batched_tokens": 512, "max_model_len": 64}
    return scheduler_config(
        k=k, layout_name="dspark" if k else "ngram", rejection_sample_method="standard", **(values | other)
    )


@pytest.fixture(scope="module")
def law(decoder: Decoder) -> Law:
    """Exact, of the first four output tokens: every prefix through the decoder, processed by the reference."""
    found: Law = {(): 1.0}
    sampling = SamplingParams(**SAMPLING)
    for _ in range(4):
        prefixes, token_ids, placed = list(found), [], []
        cache = decoder.make_cache(len(prefixes), 16)
        for block, prefix in enumerate(prefixes):
            text = [*PROMPT, *prefix]
            placed.append(AttentionRequest(len(token_ids), len(text), 0, [block]))
            token_ids += text
        metadata = build_metadata(placed, cache.block_size, cache.scratch_block, decoder.device)
        with torch.inference_mode():
            hidden = decoder.forward(torch.tensor(token_ids), metadata, cache).hidden
            last = torch.arange(1, len(prefixes) + 1) * (len(token_ids) // len(prefixes)) - 1
            logits = decoder.compute_logits(hidden[last]).tolist()
        longer: Law = {}
        for prefix, row in zip(prefixes, logits, strict=True):
            chances = processed_distribution(row, make_row(sampling, prompt=PROMPT, output=prefix))
            assert [token for token, chance in enumerate(chances) if chance > 0] == list(LETTERS)
            longer |= {(*prefix, token): found[prefix] * chances[token] for token in LETTERS}
        found = longer
    return found


def assert_law(done: Run, law: Law) -> None:
    """Tokens, and pairs that lie in one round and across two."""
    for start, length in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)):
        observed = [tuple(text[start : start + length]) for text in done.texts.values()]
        statistic, degrees = chi_square(observed, part_of(law, start, length))
        assert statistic < chi_square_bound(degrees), (start, length)


def test_tokens_and_pairs_have_the_targets_law(decoder: Decoder, law: Law) -> None:
    executor = executor_of(decoder)
    done = run(executor, config_of(3), requests(240, 6))
    assert_law(done, law)
    assert 0 < done.num_accepted < done.num_verified
    assert executor.draft_failures == {}


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5])
def test_tokens_and_pairs_have_the_targets_law_whatever_k_is(decoder: Decoder, law: Law, k: int, lag: int) -> None:
    executor = executor_of(decoder) if k else TorchExecutor(decoder, num_kv_blocks=128, block_size=16)
    done = run(executor, config_of(k), requests(1500, k + 4), lag=lag)
    assert_law(done, law)
    assert (0 < done.num_accepted < done.num_verified) if k else done.num_verified == 0
    assert executor.draft_failures == {}


@pytest.mark.slow
def test_tokens_and_pairs_have_the_targets_law_behind_ngrams_and_in_a_small_pool(decoder: Decoder, law: Law) -> None:
    executor = executor_of(decoder, num_kv_blocks=24, block_size=4, ngrams=True)
    done = run(executor, config_of(4, num_kv_blocks=24, block_size=4, max_num_seqs=12), requests(2000, 12))
    assert_law(done, law)
    assert done.scheduler.statistics.num_preemptions > 0
    assert 0 < done.num_accepted < done.num_verified


def test_the_target_as_its_own_drafter_is_never_refused(target: Path) -> None:
    """q = P in every row, through the settings: noise of their own, and yet all accepted."""
    source = open_drafter(
        SpeculativeSettings(method="draft_model", model=str(target), rejection_sample_method="standard")
    )
    assert source is not None
    invariant = build_decoder(open_model(str(target), progress=False), SETTINGS)
    executor = executor_around(invariant, 64, 16, source)
    config = scheduler_config(k=3, layout_name="draft_model", max_model_len=64, rejection_sample_method="standard")
    wanted = [request(f"r{seed}", PROMPT, seed=seed, temperature=0.7, max_tokens=20) for seed in range(3)]
    done = run(executor, config, wanted)
    assert done.num_accepted == done.num_verified > 20
    assert executor.draft_failures == {}
    assert len({tuple(text) for text in done.texts.values()}) == 3


def test_G15_a_lost_q_is_counted_and_touches_one_request(decoder: Decoder) -> None:
    """Its drafts are judged by equality with the target's own sample, so its text is the one without speculation."""
    wanted = requests(4, 12)
    alone = run(TorchExecutor(decoder, num_kv_blocks=128, block_size=16), config_of(0), wanted).texts
    whole = run(executor_of(decoder), config_of(3), requests(4, 12))
    executor = executor_of(decoder, loser="r1")
    done = run(executor, config_of(3), requests(4, 12))
    assert set(executor.draft_failures) == {"missing_distribution"}
    assert executor.draft_failures["missing_distribution"] == sum(
        output.num_verified > 0 for output in done.outputs["r1"]
    )
    assert done.texts["r1"] == alone["r1"]
    for name in ("r0", "r2", "r3"):
        assert done.texts[name] == whole.texts[name] != alone[name]


def with_each(change: Callable[[Any], DraftDistribution]) -> Spoil:
    return lambda block: replace(block, distributions=[change(found) for found in block.distributions or ()])


@pytest.mark.parametrize(
    "spoil",
    [
        with_each(lambda found: DraftDistribution()),
        with_each(lambda found: replace(found, target_ids=found.target_ids + 10**6)),
        with_each(lambda found: replace(found, target_ids=found.target_ids.to(torch.float32))),
        with_each(lambda found: replace(found, target_ids=found.target_ids[:-1])),
        with_each(lambda found: replace(found, logits=found.logits.to("meta"))),
        with_each(lambda found: replace(found, temperature=0.0)),
    ],
    ids=["of another class", "ids of no token", "ids of another type", "too few ids", "another device", "temperature"],
)
def test_a_q_that_nothing_can_be_judged_by_touches_one_request(decoder: Decoder, spoil: Spoil) -> None:
    alone = run(TorchExecutor(decoder, num_kv_blocks=128, block_size=16), config_of(0), requests(3, 12)).texts
    whole = run(executor_of(decoder), config_of(3), requests(3, 12)).texts
    executor = executor_of(decoder, loser="r1", spoil=spoil)
    done = run(executor, config_of(3), requests(3, 12))
    assert set(executor.draft_failures) == {"invalid_distribution"}
    assert done.texts == whole | {"r1": alone["r1"]} and sum(o.num_verified for o in done.outputs["r1"]) > 0


def test_under_coupled_what_drafts_were_drawn_from_changes_no_text(decoder: Decoder) -> None:
    alone = run(TorchExecutor(decoder, num_kv_blocks=128, block_size=16), config_of(0), requests(6, 20)).texts
    executor = executor_of(decoder, needs_distributions=False)
    done = run(executor, replace(config_of(3), rejection_sample_method="coupled"), requests(6, 20))
    assert done.texts == alone and done.num_verified > 0 and executor.draft_failures == {}


def test_greedy_requests_are_as_ever(decoder: Decoder) -> None:
    plain = TorchExecutor(decoder, num_kv_blocks=128, block_size=16)
    alone = run(plain, config_of(0), requests(2, 12, temperature=0.0)).texts
    executor = executor_of(decoder)
    done = run(executor, config_of(3), requests(2, 12, temperature=0.0))
    assert done.texts == alone and done.num_verified > 0 and executor.draft_failures == {}


def test_certain_drafts_are_judged_alike_by_both_rules(decoder: Decoder) -> None:
    alone = run(TorchExecutor(decoder, num_kv_blocks=128, block_size=16), config_of(0), requests(6, 30)).texts
    executor = TorchExecutor(
        decoder, num_kv_blocks=128, block_size=16, drafter=NgramDrafter(1, 3), needs_distributions=True
    )
    done = run(executor, replace(config_of(3), layout_name="ngram"), requests(6, 30))
    assert done.texts == alone
    assert 0 < done.num_accepted < done.num_verified
    assert executor.draft_failures == {}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blocks_must_say_what_each_draft_was_drawn_from(temperature: float) -> None:
    asked = DraftRequest("r", [1, 2], 3, 1, SamplingParams(temperature=temperature), 0, 0)
    three = [DrawnDistribution(torch.zeros(4), torch.arange(4, 8), 1.0) for _ in range(3)]
    drafter = SafeDrafter(NgramDrafter(1, 2), 100, distribution_check=DistributionCheck(100, "cpu"))
    assert drafter._judgeable(DraftBlock([4, 5, 6], distributions=three), asked).distributions is three
    assert drafter._judgeable(DraftBlock([4, 5, 6], distributions=()), asked).distributions == ()
    drafter._judgeable(DraftBlock([]), asked)
    assert drafter.failures == {}
    drafter._judgeable(DraftBlock([4, 5, 6]), asked)
    assert drafter.failures["missing_distribution"] == (temperature > 0)
    assert drafter._judgeable(DraftBlock([4, 5], distributions=three), asked).distributions == ()
    assert drafter.failures["missing_distribution"] == 1 + (temperature > 0)
    assert drafter._checked(DraftBlock([4, 5, 100], distributions=three)).distributions == three[:2]


def test_where_equality_judges_nothing_must_be_said_and_nothing_is_kept() -> None:
    asked = DraftRequest("r", [1, 2], 3, 1, SamplingParams(temperature=1.0), 0, 0)
    three = [DrawnDistribution(torch.zeros(4), torch.arange(4, 8), 1.0) for _ in range(3)]
    drafter = SafeDrafter(NgramDrafter(1, 2), 100)
    for block in (DraftBlock([4, 5, 6], distributions=three), DraftBlock([4, 5, 6]), DraftBlock([4], [0.5])):
        kept = drafter._judgeable(block, asked)
        assert not kept.distributions and (kept.token_ids, kept.confidences) == (block.token_ids, block.confidences)
    assert drafter.failures == {}
