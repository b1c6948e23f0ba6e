"""Chains: who drafts for whom, and what is believed of their drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from speculation.make_fixtures import write_fixture

from slipstream.config import SettingError, SpeculativeSettings, check_speculative
from slipstream.config import speculative_settings_from as settings_from
from slipstream.request import SamplingParams
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock, DraftDistribution, DraftRequest
from slipstream.speculation.chain import ChainDrafter, PartAcceptance
from slipstream.speculation.ngram import NgramDrafter
from slipstream.speculation.registry import open_drafter


def asked(name: str, tokens: list[int], k: int = 3) -> DraftRequest:
    return DraftRequest(name, tokens, k, 1, SamplingParams(), 0, 0)


class Model:
    """Always drafts the same, with confidences; keeps who asked."""

    layout = LAYOUTS["dspark"]

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.released: list[str] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        self.calls.append([request.request_id for request in requests])
        return [DraftBlock([90, 91, 92][: r.num_draft_tokens], [0.9, 0.8, 0.7]) for r in requests]

    def release(self, request_id: str) -> None:
        self.released.append(request_id)


def test_the_model_drafts_where_no_match_is_found() -> None:
    model = Model()
    chain = ChainDrafter({"ngram": NgramDrafter(2, 3), "dspark": model}, LAYOUTS["dspark"])
    repeated, fresh = [1, 2, 3, 4, 1, 2], [5, 6, 7]
    blocks = chain.propose([asked("r", repeated), asked("f", fresh), asked("r2", repeated)])
    assert [block.token_ids for block in blocks] == [[3, 4, 1], [90, 91, 92], [3, 4, 1]]
    assert model.calls == [["f"]]
    assert blocks[1].confidences == [0.9, 0.8, 0.7]
    assert blocks[0].confidences == [0.5, 0.5, 0.5]
    assert [block.num_query_rows for block in blocks] == [0, 3, 0]
    chain.propose([asked("r", repeated)])
    assert model.calls == [["f"]], "nobody left for the model"
    chain.release("f")
    assert model.released == ["f"]


def test_what_drafts_were_drawn_from_is_handed_on() -> None:
    drawn_from = [DraftDistribution() for _ in range(3)]

    class Drawing(Model):
        def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
            return [replace(block, distributions=drawn_from) for block in super().propose(requests)]

    chain = ChainDrafter({"ngram": NgramDrafter(2, 3), "dspark": Drawing()}, LAYOUTS["dspark"])
    by_ngrams, by_model = chain.propose([asked("r", [1, 2, 3, 4, 1, 2]), asked("f", [5, 6, 7])])
    assert by_ngrams.distributions == () and by_model.distributions is drawn_from


def test_acceptance_is_kept_per_part_and_becomes_the_confidence() -> None:
    chain = ChainDrafter({"ngram": NgramDrafter(2, 2), "dspark": Model()}, LAYOUTS["dspark"])
    text = [1, 2, 3, 4, 1, 2]
    chain.propose([asked("r", text)])  # drafts 3, 4, 1
    text += [3, 9]  # the first was right, the second wrong
    chain.propose([asked("r", text)])  # no match: the model drafts 90, 91, 92
    text += [90]
    chain.propose([asked("r", text)])
    ngram, dspark = chain.acceptance["ngram"], chain.acceptance["dspark"]
    assert (ngram.num_drafts, ngram.num_right, dspark.num_drafts, dspark.num_right) == (2, 1, 1, 1)
    assert ngram.chances(3) == pytest.approx([3 / 5, 2 / 5, 2 / 5])


def test_chances_follow_what_is_seen() -> None:
    acceptance = PartAcceptance()
    for turn in range(2000):
        acceptance.judge([1, 2], [1, 2 if turn % 4 else 0])
    assert acceptance.chances(3) == pytest.approx([1.0, 0.75, 0.75], abs=0.02)
    for _ in range(2000):
        acceptance.judge([1, 2], [0])
    assert acceptance.chances(1)[0] < 0.05
    assert acceptance.num_drafts == 6000


def test_the_registry_chains_what_stands_alone(tmp_path: Path) -> None:
    model = str(write_fixture(tmp_path, "speculators-dspark"))
    source = open_drafter(settings_from({"method": "chain", "drafters": ["ngram", "dspark"], "model": model}))
    assert source is not None
    assert source.layout is LAYOUTS["dspark"]
    assert (source.settings.num_drafts, source.settings.draft_max_model_len) == (8, 512)
    assert source.kv_bytes_per_token(torch.float32) == 512
    assert source.settings.method == "chain"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SpeculativeSettings(method="chain"), r"two or more of ngram, dflash, dspark, draft_model, got \(\)"),
        (SpeculativeSettings(method="chain", drafters=("ngram", "forced")), "two or more of"),
        (
            SpeculativeSettings(method="chain", drafters=("dspark", "ngram"), model="x"),
            "follows a model is never asked",
        ),
        (SpeculativeSettings(method="chain", drafters=("ngram", "ngram")), "each may stand once"),
        (SpeculativeSettings(method="chain", drafters=("ngram", "draft_model")), "needs a model"),
        (SpeculativeSettings(method="ngram", drafters=("ngram", "dspark")), "belongs to the method 'chain'"),
        (SpeculativeSettings(method="chain", drafters="ngram"), "two or more of"),  # type: ignore[arg-type]
    ],
)
def test_chains_that_cannot_work(settings: SpeculativeSettings, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        check_speculative(settings)
