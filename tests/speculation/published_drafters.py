"""What a drafter makes of a text, as far as another implementation can be asked the same: used by the script that asks
the `speculators` package (benchmarks/against_speculators.py) and by the test that keeps its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.attention.paged import PagedAttention
from slipstream.kernels.fast import FastKernels
from slipstream.models.decoder import Decoder
from slipstream.models.hf_config import hf_config
from slipstream.models.safetensors_weights import read_safetensors, safetensors_files
from slipstream.request import SamplingParams
from slipstream.scheduler.protocol import DraftRequest
from slipstream.speculation.block_drafter import BlockDrafter
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
from slipstream.speculation.heads import draw_blocks
from slipstream.speculation.serving import ServingTarget, TargetStates

PUBLISHED = Path(__file__).parent / "published"
TOLERANCE = 2e-5
NUM_BLOCKS, BLOCK_SIZE, BLOCK_IDS = 8, 8, [3, 0, 5, 1]


@dataclass(frozen=True, slots=True)
class DraftedText:
    """One block, K drafts from an anchor in the text.

    Attributes:
        hidden: of the rows that predict, after the final norm, [K, d].
        logits, confidence: with the Markov bias of the text's own tokens, [K, V_d] and [K]; logits of confidences.
        drafts, draft_confidence: greedy drafts as target ids [K], and confidence logits with those drafts before.
    """

    hidden: Tensor
    logits: Tensor
    confidence: Tensor | None
    drafts: Tensor
    draft_confidence: Tensor | None

    def tensors(self) -> dict[str, Tensor]:
        """By name, without what is not there."""
        names = ("hidden", "logits", "confidence", "drafts", "draft_confidence")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def differing(self, other: DraftedText) -> set[str]:
        """What is not the same."""
        drafts = set() if torch.equal(self.drafts, other.drafts) else {"drafts"}
        return drafts | {name for name, gap in self.difference(other).items() if not gap <= TOLERANCE}

    def difference(self, other: DraftedText) -> dict[str, float]:
        """Largest differences of the numbers; infinite where only one has them."""
        mine, others = self.tensors(), other.tensors()
        return {
            name: float((mine[name] - others[name]).abs().max()) if name in mine and name in others else float("inf")
            for name in sorted(mine.keys() | others.keys())
            if name != "drafts"
        }


def kept(name: str) -> tuple[list[int], dict[int, DraftedText]]:
    """The text, and by anchor what the package made of it."""
    tensors = load_file(PUBLISHED / name / "expected.safetensors")
    text = tensors.pop("text").tolist()
    anchors = sorted({int(key.split(".")[0]) for key in tensors})
    return text, {
        anchor: DraftedText(
            hidden=tensors[f"{anchor}.hidden"],
            logits=tensors[f"{anchor}.logits"],
            confidence=tensors.get(f"{anchor}.confidence"),
            drafts=tensors[f"{anchor}.drafts"],
            draft_confidence=tensors.get(f"{anchor}.draft_confidence"),
        )
        for anchor in anchors
    }


def open_model(directory: Path) -> DrafterModel:
    """A drafter in float32, by the reader."""
    return open_drafter_checkpoint(directory).load(torch.float32, torch.device("cpu"))


def open_decoder(directory: Path) -> Decoder:
    """The target, in float32; there is no tokenizer."""
    config = hf_config(json.loads((directory / "config.json").read_text()), {})
    weights = {name: value.float() for name, value in read_safetensors(safetensors_files(directory), config)}
    return Decoder(config, weights, kernels=FastKernels(), attention=PagedAttention())


@torch.inference_mode()
def draft_text(decoder: Decoder, model: DrafterModel, text: Sequence[int], anchor: int) -> DraftedText:
    """As served: the target reads the text before the anchor, the drafter observes and proposes. Spends the model."""
    drafter = BlockDrafter(model, ServingTarget(decoder, NUM_BLOCKS, BLOCK_SIZE))
    cache = decoder.make_cache(NUM_BLOCKS, BLOCK_SIZE)
    token_ids = torch.tensor(text[:anchor])
    metadata = build_metadata(
        [AttentionRequest(0, anchor, 0, BLOCK_IDS)], BLOCK_SIZE, cache.scratch_block, cache.device
    )
    output = decoder.forward(token_ids, metadata, cache, drafter.tapped_layers)
    drafter.observe(TargetStates(token_ids, output.layer_hidden, metadata))

    rows: list[Tensor] = []
    base_logits = model.base_logits
    model.base_logits = lambda hidden: (rows.append(hidden), base_logits(hidden))[1]  # type: ignore[method-assign]
    num_drafts = model.config.max_draft_tokens
    known = list(text[: anchor + 1])
    request = DraftRequest("text", known, num_drafts, 1, SamplingParams(temperature=0.0), 0, 0, BLOCK_IDS)
    block = drafter.propose([request])[0]
    hidden = rows[0][None]
    drawn = draw_blocks(
        base_logits(hidden[0])[None],
        hidden,
        torch.tensor([text[anchor]]),
        lambda k, logits: torch.tensor([text[anchor + 1 + k]]),
        model.markov_head,
        model.confidence_head,
        keep_logits=True,
    )
    assert drawn.logits is not None
    scores = drawn.confidence_logits
    return DraftedText(
        hidden=hidden[0],
        logits=drawn.logits[0],
        confidence=None if scores is None else scores[0],
        drafts=torch.tensor(block.token_ids),
        draft_confidence=None if block.confidences is None else torch.logit(torch.tensor(block.confidences)),
    )
