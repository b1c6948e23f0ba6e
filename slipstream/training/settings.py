"""What a training run is told: the data, the drafter's shape, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.speculation.drafter_config import Algorithm, RowLayout

PROMPT_KINDS = ("chat", "arithmetic", "code", "self")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Which dialogues are made.

    Attributes:
        kinds: kind of prompt, one of PROMPT_KINDS or the path of a JSONL file -> its share of the dialogues.
        temperatures: temperature of answers -> its share.
        second_turns: share of dialogues that go on with a second turn, which the model writes for both sides.
        max_prompt_tokens: longer prompts are left out. max_answer_tokens: answers are cut there.
        min_answer_tokens: a dialogue with fewer answer tokens, loops taken off, is dropped.
        num_per_file: dialogues generated together, and kept in one file; changing it changes the data.
        max_num_seqs: requests of the engine at once; so does this.
    """

    seed: int = 1
    num_dialogues: int = 2000
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {"chat": 0.35, "arithmetic": 0.2, "code": 0.25, "self": 0.2}
    )
    temperatures: Mapping[float, float] = field(default_factory=lambda: {0.0: 0.5, 0.7: 0.25, 1.0: 0.25})
    second_turns: float = 0.1
    max_prompt_tokens: int = 384
    max_answer_tokens: int = 256
    min_answer_tokens: int = 14
    num_per_file: int = 128
    max_num_seqs: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """The network to train. Heads, widths and positions are the target's.

    Attributes:
        block_size: rows of a block; drafts are as many in the anchor-first layout, one fewer in fill-in.
        target_layers: tapped target layers, as in DrafterConfig; empty spreads four of them.
        from_layers: target layers that the drafter's layers start from; empty for random ones.
        num_layers: of the drafter; with `from_layers`, as many as those.
        draft_vocab_size: 0 for the whole vocabulary.
        mask_token: text of the vocabulary entry used as mask; empty for one that is never written.
        window: context tokens that each layer sees; 0 for all.
    """

    algorithm: Algorithm = Algorithm.DSPARK
    layout: RowLayout = RowLayout.ANCHOR_FIRST
    block_size: int = 5
    num_layers: int = 2
    target_layers: tuple[int, ...] = ()
    from_layers: tuple[int, ...] = ()
    draft_vocab_size: int = 8192
    markov_rank: int = 64
    has_confidence: bool = True
    window: int = 0
    mask_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """How much each part of the loss counts (training/block_loss.py). Draft k = 0, 1, … weighs exp(-k / decay)."""

    cross_entropy: float = 0.1
    l1: float = 0.9
    kl: float = 0.0
    confidence: float = 1.0
    decay: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How it is trained.

    Attributes:
        num_steps: optimiser steps of the whole run; the learning rate falls to 0 over them.
        num_sequences, num_anchors: dialogues of a step, and blocks drawn from each.
        warmup: share of the steps over which the learning rate rises.
        loss: see LossWeights.
        held_out_every: every so many-th dialogue is only measured on.
        evaluate_every, checkpoint_every: steps.
        state_cache: keep target states on disk; off makes them anew in every epoch.
        max_context: dialogues are cut here.
    """

    seed: int = 1
    num_steps: int = 2000
    num_sequences: int = 8
    num_anchors: int = 40
    learning_rate: float = 6e-4
    warmup: float = 0.04
    weight_decay: float = 0.0
    clip: float = 1.0
    loss: LossWeights = field(default_factory=LossWeights)
    held_out_every: int = 25
    evaluate_every: int = 200
    checkpoint_every: int = 100
    state_cache: bool = True
    max_context: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything a run depends on beside the target."""

    data: DataSettings = field(default_factory=DataSettings)
    drafter: DrafterShape = field(default_factory=DrafterShape)
    train: TrainSettings = field(default_factory=TrainSettings)
