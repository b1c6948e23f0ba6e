"""A deliberately broken layer id, position, head or vocabulary map shows: against the numbers that the `speculators`
package gave, and against the oracle. (tests/execution/test_block_drafter.py breaks the oracle instead.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models.decoder_helpers import random_tokens
from models.tiny_models import write_tiny_hf_model
from speculation.published_drafters import PUBLISHED, draft_text, kept, open_decoder, open_model
from speculation.tiny_drafters import VOCAB_SIZE, oracle_of, tiny_drafter, tiny_drafter_config

from slipstream.attention.metadata import AttentionMetadata, build_metadata
from slipstream.attention.pattern import AttentionPattern
from slipstream.models.decoder import Decoder
from slipstream.speculation import block_drafter
from slipstream.speculation.drafter_config import DrafterConfig, RowLayout
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.heads import MarkovHead

Break = Callable[[DrafterModel, pytest.MonkeyPatch], None]


def configured(change: Callable[[DrafterConfig], DrafterConfig]) -> Break:
    def apply(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
        model.config = change(model.config)

    return apply


def late_block(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    """The block's rows stand one position too late; context does not, since only distances count."""

    def late(*arguments: object) -> AttentionMetadata:
        metadata = build_metadata(*arguments)  # type: ignore[arg-type]
        return replace(metadata, positions=metadata.positions + 1)

    patch.setattr(block_drafter, "build_metadata", late)


def early_context(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    make_rotary = model.make_rotary

    class Early:
        def __init__(self, num_positions: int) -> None:
            self.table = make_rotary(num_positions)
            self.calls = 0

        def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1  # the first is the context's
            return self.table.at((positions - 1).clamp(min=0) if self.calls == 1 else positions)

    patch.setattr(model, "make_rotary", Early)


def shifted_head(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    """Logits of each draft token come from its neighbour's row."""
    base_logits = DrafterModel.base_logits
    patch.setattr(DrafterModel, "base_logits", lambda self, hidden: base_logits(self, hidden).roll(1, dims=-1))


def shifted_map(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    ids = model.target_ids.roll(1)
    model.d2t.copy_(ids - torch.arange(len(ids)))


def no_map(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    model.d2t.zero_()


def unbiased(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MarkovHead, "bias", lambda self, features: 0.0)


def of_the_wrong_token(model: DrafterModel, patch: pytest.MonkeyPatch) -> None:
    """The Markov head looks up the neighbour of the token before."""
    embed = MarkovHead.embed
    patch.setattr(
        MarkovHead, "embed", lambda self, previous: embed(self, (previous + 1) % self.markov_w1.num_embeddings)
    )


def ids_one_less(config: DrafterConfig) -> DrafterConfig:
    return replace(config, target_layer_ids=tuple(i - 1 for i in config.target_layer_ids))


def other_rows(config: DrafterConfig) -> DrafterConfig:
    return replace(config, layout=RowLayout.FILL_IN, block_size=config.block_size + 1)


FAULTS: dict[str, tuple[Break, set[str]]] = {
    "layer ids one less": (configured(ids_one_less), {"hidden"}),
    "block one position late": (late_block, {"hidden"}),
    "context one position early": (early_context, {"hidden"}),
    "head rows shifted": (shifted_head, {"logits", "drafts"}),
    "d2t shifted": (shifted_map, {"drafts"}),
    "d2t ignored": (no_map, {"drafts"}),
    "rows predict their own position": (configured(other_rows), {"hidden"}),
    "another mask": (configured(lambda c: replace(c, mask_token_id=c.mask_token_id + 1)), {"hidden"}),
    "causal block": (configured(lambda c: replace(c, patterns=(AttentionPattern(True),) * c.num_layers)), {"hidden"}),
    "no Markov bias": (unbiased, {"logits"}),
    "Markov head of another token": (of_the_wrong_token, {"logits", "confidence"}),
}


@pytest.fixture(scope="module")
def published_target() -> Decoder:
    return open_decoder(PUBLISHED / "target")


@pytest.fixture(scope="module")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return open_decoder(write_tiny_hf_model(Path(tmp_path_factory.mktemp("tiny")) / "llama"))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_packages_numbers_show_it(published_target: Decoder, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    break_it, shown = FAULTS[fault]
    text, expected = kept("dspark-vanilla")
    anchor, theirs = next(iter(expected.items()))
    sound, broken = (open_model(PUBLISHED / "dspark-vanilla") for _ in range(2))
    assert draft_text(published_target, sound, text, anchor).differing(theirs) == set()
    break_it(broken, monkeypatch)
    assert shown <= draft_text(published_target, broken, text, anchor).differing(theirs)


def agrees(decoder: Decoder, model: DrafterModel, text: list[int]) -> bool:
    """Whether drafts and confidences are those of the oracle of the unbroken drafter."""
    ours = draft_text(decoder, model, text, len(text) - 7)
    drafts, scores, _ = oracle_of(TINY).draft(
        text[:-6], len(ours.drafts), temperature=0.0, seed=0, choice=0, num_prompt=1
    )
    assert scores is not None and ours.draft_confidence is not None
    return ours.drafts.tolist() == drafts and ours.draft_confidence.tolist() == pytest.approx(scores, abs=1e-3)


TINY = tiny_drafter_config()
TEXT = random_tokens(27, 4, VOCAB_SIZE)


def test_the_unbroken_drafter_is_the_oracles(tiny_target: Decoder) -> None:
    assert agrees(tiny_target, tiny_drafter(TINY), TEXT)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_oracle_shows_it(tiny_target: Decoder, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model = tiny_drafter(TINY)
    FAULTS[fault][0](model, monkeypatch)
    assert not agrees(tiny_target, model, TEXT)
