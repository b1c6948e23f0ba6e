"""Compares drafters with the public `speculators` package (PyPI), in both directions.

    pip install speculators          # in an environment of its own; it wants another transformers
    python benchmarks/against_speculators.py [--write tests/speculation/published]

A tiny Llama by transformers, and for each case below a tiny drafter by the package's own classes, saved by the package
and read again by it. Its forward pass gives hidden states, logits and confidences with a known text, and, called once
per draft with the drafts so far in the text's place, greedy drafts: the package has no drafting loop of its own. The
same checkpoint is read and run here. Then what Slipstream writes is loaded by the package, and must give the same.
z-lab's layout is checked through the package's converter. Exits with 1 where anything differs.

`--write` keeps the checkpoints and the package's numbers, which `tests/speculation/test_against_speculators.py` holds
against the reader without the package.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from loguru import logger
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.convert.dflash import DFlashConverter
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.models.dflash import core as dflash_core
from speculators.models.dspark import DSparkDraftModel, DSparkSpeculatorConfig
from speculators.models.dspark import core as dspark_core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from speculation.published_drafters import DraftedText, draft_text, open_decoder, open_model

from slipstream.models.decoder import Decoder
from slipstream.speculation.drafter_config import TargetIdentity
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint, write_drafter

VOCAB_SIZE, HIDDEN, NUM_LAYERS = 128, 32, 3
TARGET = "target"
TEXT_LENGTH, ANCHORS = 24, (9, 15)
BLOCK_SIZE = 4
PACKAGES = ("speculators", "transformers", "torch")


@dataclass(frozen=True, slots=True)
class Case:
    """A drafter of the package: fields of its configuration, and of its layers'. layer_ids count layers passed."""

    kind: str
    draft_vocab_size: int = VOCAB_SIZE
    layer_ids: tuple[int, ...] = (1, 3)
    fields: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)


SLIDING = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True,
    "sliding_window": 5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "dflash": Case("dflash"),
    "dflash-reduced-window": Case("dflash", 40, (0, 2), {"sliding_window_non_causal": True}, SLIDING),
    "dspark-vanilla": Case("dspark", 40),
    "dspark-fill-in-gated": Case(
        "dspark", 40, (1, 2), {"sample_from_anchor": False, "markov_head_type": "gated"}, {"attention_bias": True}
    ),
    "dspark-rnn-causal-window": Case(
        "dspark",
        fields={"markov_head_type": "rnn", "confidence_head_with_markov": False},
        layer={**SLIDING, "rope_parameters": LLAMA3},
    ),
    "dspark-no-heads": Case(
        "dspark", 40, (2,), {"markov_rank": 0, "enable_confidence_head": False, "confidence_head_with_markov": False}
    ),
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that matter, each a number that bfloat16 can hold: files stay small and exact."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                value = 1 + 0.2 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "embed_tokens" in name or "markov_w1" in name:
                value = noise
            else:
                value = noise * 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_(value.bfloat16().float())


def save(model: Any, directory: Path) -> None:
    """As the package saves it, in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(directory)
    for source in directory.glob("*.py"):  # the package lays its own code beside the weights, which is not ours to keep
        source.unlink()


def make_target(directory: Path) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    randomise(model, 1)
    save(model, directory)


def make_drafter(case: Case, directory: Path) -> None:
    layer = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
    } | case.layer
    from_anchor = case.fields.get("sample_from_anchor", case.kind == "dspark")
    values: dict[str, Any] = {
        "transformer_layer_config": Qwen3Config(**layer),
        "draft_vocab_size": case.draft_vocab_size,
        "block_size": BLOCK_SIZE,
        "aux_hidden_state_layer_ids": list(case.layer_ids),
        "mask_token_id": 5,
        "sample_from_anchor": from_anchor,
        "speculators_config": SpeculatorsConfig(
            algorithm=case.kind,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=BLOCK_SIZE - (not from_anchor))],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(TARGET),
        ),
    }
    if case.kind == "dflash":
        model: Any = DFlashDraftModel(DFlashSpeculatorConfig(**(values | case.fields)))
    else:
        model = DSparkDraftModel(DSparkSpeculatorConfig(**(values | {"markov_rank": 8} | case.fields)))
    randomise(model, 2)
    if case.draft_vocab_size != VOCAB_SIZE:
        order = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
        ids = order[: case.draft_vocab_size].sort().values
        t2d = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill_(0, ids, True)
        model.load_vocab_mappings(t2d, ids - torch.arange(case.draft_vocab_size))
    model.load_verifier_weights()  # embedding, and the head of a whole vocabulary; a reduced head stays its own
    save(model, directory)


def load_theirs(directory: Path) -> Any:
    """By the package's reader, in float32, with attention that needs no compiler."""
    config = SpeculatorModelConfig.from_pretrained(str(directory))
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(str(directory), config=config, dtype=torch.float32)
    return model.eval()


@contextmanager
def overheard(kept: dict[str, Tensor]) -> Iterator[None]:
    """What the package's forward hands to its metrics: corrected logits and confidence logits."""

    def dflash(logits: Tensor, *others: Any, **named: Any) -> tuple[Tensor, dict[str, Any]]:
        kept["logits"] = logits[0]
        return logits.sum(), {}

    def dspark(logits: Tensor, targets: Tensor, confidence: Tensor | None, *others: Any, **named: Any) -> Any:
        if confidence is not None:
            kept["confidence"] = confidence[0]
        return dflash(logits)

    with patch.object(dflash_core, "compute_metrics", dflash), patch.object(dspark_core, "compute_metrics", dspark):
        yield


@torch.no_grad()
def forward(model: Any, states: Sequence[Tensor], text: Sequence[int], anchor: int) -> dict[str, Tensor]:
    """The package's forward pass with one anchor: hidden [B, d], logits [B, V_d] and confidence [B] of its block.

    Args:
        states: [S, d] after 0, 1, … layers of the target.
    """
    kept: dict[str, Tensor] = {}
    hook = model.norm.register_forward_hook(lambda module, inputs, output: kept.update(hidden=output[0]))
    mask = torch.zeros(1, len(text), dtype=torch.long)
    mask[0, anchor] = 1
    with overheard(kept):
        model(
            torch.cat([states[j] for j in model.config.aux_hidden_state_layer_ids], dim=-1)[None],
            torch.tensor([text]),
            mask,
            states[-1][None],
            torch.zeros(1, len(text), dtype=torch.long),
            max_anchors=1,
        )
    hook.remove()
    return kept


def run_theirs(model: Any, states: Sequence[Tensor], text: Sequence[int], anchor: int) -> DraftedText:
    first = 0 if model.config.sample_from_anchor else 1
    given = {name: rows[first:] for name, rows in forward(model, states, text, anchor).items()}
    shifts = torch.zeros(model.draft_vocab_size, dtype=torch.long) if model.d2t is None else model.d2t
    drafted: list[int] = []
    scores: list[float] = []
    for k in range(BLOCK_SIZE - first):
        so_far = [*text[: anchor + 1], *drafted]
        rows = forward(model, states, so_far + [0] * (len(text) - len(so_far)), anchor)
        best = int(rows["logits"][first + k].argmax())
        drafted.append(best + int(shifts[best]))
        if "confidence" in rows:
            scores.append(float(rows["confidence"][first + k]))
    return DraftedText(
        hidden=given["hidden"],
        logits=given["logits"],
        confidence=given.get("confidence"),
        drafts=torch.tensor(drafted),
        draft_confidence=torch.tensor(scores) if scores else None,
    )


@torch.no_grad()
def target_states(directory: Path, text: Sequence[int]) -> list[Tensor]:
    """By transformers, after 0, 1, … layers; the last one before the final norm, which its own list does not have."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    last: list[Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda module, inputs, output: last.append(output))
    states = list(model(torch.tensor([text]), output_hidden_states=True).hidden_states)
    states[-1] = last[0][0] if isinstance(last[0], tuple) else last[0]
    return [state[0] for state in states]


class Report:
    """What was compared; remembers whether anything differed."""

    def __init__(self) -> None:
        self.is_good = True

    def say(self, name: str, what: str, is_good: bool, detail: str) -> None:
        self.is_good &= is_good
        print(f"{name:26s} {what:30s} {'ok' if is_good else 'DIFFERS':8s} {detail}")

    def compare(self, name: str, what: str, ours: Sequence[DraftedText], theirs: Sequence[DraftedText]) -> None:
        pairs = list(zip(ours, theirs, strict=True))
        gaps = [a.difference(b) for a, b in pairs]
        detail = ", ".join(f"{key} {max(gap[key] for gap in gaps):.1e}" for key in gaps[0])
        same = all(torch.equal(a.drafts, b.drafts) for a, b in pairs)
        is_good = not any(a.differing(b) for a, b in pairs)
        self.say(name, what, is_good, f"{detail}, drafts {'same' if same else 'OTHERS'}")


def check_shared_head(
    report: Report, decoder: Decoder, source: Path, states: Sequence[Tensor], text: Sequence[int]
) -> None:
    """A reduced vocabulary with the target's head, as trained here. The package takes what is missing from memory that
    nobody wrote, and says so in a log line only; so it is given the rows of the target's head as `lm_head`."""
    checkpoint, directory = open_drafter_checkpoint(source), Path("shared")
    tensors = open_model(source).state_dict()
    ids = torch.arange(checkpoint.config.draft_vocab_size) + tensors["d2t"]
    del tensors["lm_head.weight"]
    write_drafter(directory, replace(checkpoint.config, owns_head=False), tensors)
    ours = [draft_text(decoder, open_model(directory), text, anchor) for anchor in ANCHORS]
    head = load_file(Path(TARGET) / "model.safetensors")["lm_head.weight"].float()
    write_drafter(directory, checkpoint.config, tensors | {"lm_head.weight": head[ids]})
    theirs = [run_theirs(load_theirs(directory), states, text, anchor) for anchor in ANCHORS]
    report.compare(source.name, "target's head, lm_head added", ours, theirs)


def check_zlab(report: Report, source: Path) -> None:
    """The same drafter in z-lab's layout, by the package's converter and by our reader."""
    zlab, converted = Path("zlab"), Path("converted")
    zlab.mkdir()
    layer = json.loads((source / "config.json").read_text())["transformer_layer_config"]
    values = layer | {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK_SIZE,
        "num_target_layers": NUM_LAYERS,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 1]},
    }
    (zlab / "config.json").write_text(json.dumps(values))
    shutil.copy(source / "model.safetensors", zlab)
    DFlashConverter().convert(zlab, converted, TARGET)
    nobody = TargetIdentity()
    a, b = (replace(open_drafter_checkpoint(path).config, target=nobody) for path in (zlab, converted))
    report.say("dflash", "z-lab read = converted read", a == b, f"layers {a.target_layer_ids}, {b.target_layer_ids}")


def keep(directory: Path, found: Sequence[DraftedText], text: Sequence[int], written: Path) -> None:
    """Put the package's numbers, and the config.json of ours that it loaded, beside a checkpoint."""
    tensors = {"text": torch.tensor(text)}
    for anchor, drafted in zip(ANCHORS, found, strict=True):
        tensors |= {f"{anchor}.{key}": value.contiguous() for key, value in drafted.tensors().items()}
    save_file(tensors, directory / "expected.safetensors", {package: version(package) for package in PACKAGES})
    shutil.copy(written / "config.json", directory / "written.json")


def run(report: Report, root: Path, write: bool) -> None:
    """In the current directory, so that no file names another place."""
    text = torch.randint(6, VOCAB_SIZE, (TEXT_LENGTH,), generator=torch.Generator().manual_seed(4)).tolist()
    make_target(Path(TARGET))
    states = target_states(Path(TARGET), text)
    decoder = open_decoder(Path(TARGET))
    for name, case in CASES.items():
        directory, written = Path(name), Path("written") / name
        make_drafter(case, directory)
        checkpoint = open_drafter_checkpoint(directory)
        theirs = [run_theirs(load_theirs(directory), states, text, anchor) for anchor in ANCHORS]
        ours = [draft_text(decoder, open_model(directory), text, anchor) for anchor in ANCHORS]
        report.compare(name, "their file, read by both", ours, theirs)
        write_drafter(written, checkpoint.config, open_model(directory).state_dict())
        again = [run_theirs(load_theirs(written), states, text, anchor) for anchor in ANCHORS]
        report.compare(name, "our file, read by both", ours, again)
        if write:
            keep(directory, theirs, text, written)
    check_shared_head(report, decoder, Path("dspark-vanilla"), states, text)
    check_zlab(report, Path("dflash"))
    if write:
        for name in (TARGET, *CASES):
            shutil.copytree(name, root / name, dirs_exist_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FOLDER", help="keep checkpoints and numbers there")
    args = parser.parse_args()
    root = Path(args.write or "").resolve()
    print(", ".join(f"{package} {version(package)}" for package in PACKAGES))
    report = Report()
    logger.disable("speculators")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run(report, root, args.write is not None)
        os.chdir("/")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
