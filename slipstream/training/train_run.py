"""A training run from dialogues to a drafter in a folder."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipstream.config import SettingError
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.formats.checkpoint import DrafterCheckpoint, write_drafter
from slipstream.training.batches import BatchMaker
from slipstream.training.bigrams import count_bigrams
from slipstream.training.block_pass import BlockPass
from slipstream.training.continued import continued_model
from slipstream.training.corpus import Dialogue, split_held_out
from slipstream.training.draft_vocabulary import coverage, most_frequent, token_counts
from slipstream.training.drafter_shape import choose_mask_token, drafter_config
from slipstream.training.initial_weights import copy_target_layers, fill_random, start_markov_head
from slipstream.training.run_state import RunFile
from slipstream.training.settings import PROMPT_KINDS, Recipe
from slipstream.training.state_cache import StateCache, check_states
from slipstream.training.target import TrainingTarget
from slipstream.training.target_states import FreshStates, StateSource, TargetReader
from slipstream.training.trainer import Trainer

EXPORT_TYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Progress:
    """Whom a run tells how far it is: (stage, done, of how many)."""

    report: Callable[[str, int, int], None] = lambda stage, done, total: None


class TrainRun:
    """Everything between dialogues and a trainer.

    Args:
        folder: of the run: target states, run state, drafter.
        progress: hears how far the states are.
        states: folder with the target states of another run, to be shared; None keeps them in `folder`.
        start: a drafter to train on; None makes a new one.

    Attributes:
        config: of the drafter. trainer: goes on where the run was ended.
        coverage: share of answer tokens in the draft vocabulary.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        target: TrainingTarget,
        dialogues: Sequence[Dialogue],
        progress: Progress,
        states: Path | None = None,
        start: DrafterCheckpoint | None = None,
    ) -> None:
        self.folder = folder
        self._shared_states = states
        self._start = start
        self.recipe = recipe
        settings = recipe.train
        dialogues = [_cut(dialogue, settings.max_context) for dialogue in dialogues]
        train, held_out = split_held_out(dialogues, settings.held_out_every)
        if not train:
            raise SettingError(f"{len(dialogues)} dialogues leave none to train on; make more, at least 2")
        vocab_size = target.decoder.config.vocab_size
        self.config = self._config(target, dialogues)
        model = self._model(target, train)
        written = token_counts(held_out, vocab_size, of_answers=True)
        self.coverage = coverage(written, model.target_ids.cpu().numpy())
        source = self._states(target, [*train, *held_out], progress)
        head = target.head[model.target_ids]
        markov, run_file = model.markov_head, folder / "run.pt"
        if markov is not None and start is None and not run_file.is_file():
            bigrams = count_bigrams(train, source, head, vocab_size)
            start_markov_head(markov, *bigrams.factors(markov.rank, vocab_size, seed=settings.seed))
        rotary = model.make_rotary(max(map(len, dialogues)) + self.config.block_size)
        device = target.decoder.device

        def batches(part: Sequence[Dialogue], first: int) -> BatchMaker:
            numbers = range(first, first + len(part))
            anchors = settings.num_anchors
            return BatchMaker(self.config, part, numbers, source, num_anchors=anchors, device=device)

        self.trainer = Trainer(
            BlockPass(model, head, rotary, settings.loss, target.compute),
            batches(train, 0),
            batches(held_out, len(train)),
            settings,
            RunFile(run_file, self._identity(dialogues)),
        )

    def in_words(self) -> str:
        """What is trained on what."""
        record, config = self.config.training, self.config
        count = sum(values.numel() for values in self.trainer.block_pass.model.parameters())
        return (
            f"{record['num_dialogues']} dialogues, {record['num_tokens']} tokens, {record['num_answer_tokens']} of "
            f"them answers; {config.algorithm.value} drafter of {count / 1e6:.1f} M parameters on target layers "
            f"{', '.join(map(str, config.target_layer_ids))}; its {config.draft_vocab_size} tokens cover "
            f"{self.coverage:.2%} of held-out answers"
        )

    @property
    def drafter_folder(self) -> Path:
        """Where `export` writes."""
        return self.folder / "drafter"

    def export(self) -> Path:
        """Write the drafter as it is now, without calibration; returns its folder."""
        folder = self.drafter_folder
        trainer = self.trainer
        last = trainer.history.held_out[-1] if trainer.history.held_out else None
        record = {**self.config.training, "steps": trainer.step, "held_out": last}
        config = dataclasses.replace(self.config, training=record)
        tensors = {
            name: values.to(EXPORT_TYPE) if values.is_floating_point() else values
            for name, values in trainer.block_pass.model.state_dict().items()
        }
        write_drafter(folder, config, tensors)
        return folder

    def _config(self, target: TrainingTarget, dialogues: Sequence[Dialogue]) -> DrafterConfig:
        shape, config, tokenizer = self.recipe.drafter, target.decoder.config, target.source.tokenizer
        everything = np.concatenate([dialogue.token_ids for dialogue in dialogues])
        counts = np.bincount(everything, minlength=config.vocab_size)
        eos = {*config.eos_token_ids, *tokenizer.eos_token_ids}
        start = self._start
        mask = choose_mask_token(shape, tokenizer, counts, eos) if start is None else start.config.mask_token_id
        record: dict[str, Any] = {
            "recipe": _plain(dataclasses.asdict(_without_folders(self.recipe))),
            "num_dialogues": len(dialogues),
            "num_tokens": len(everything),
            "num_answer_tokens": int(sum(dialogue.is_answer.sum() for dialogue in dialogues)),
        }
        if start is not None:
            record["started_from"] = {**start.config.training}
        return drafter_config(shape, config, target.identity, mask, record)

    def _model(self, target: TrainingTarget, train: Sequence[Dialogue]) -> DrafterModel:
        if self._start is not None:
            model = continued_model(self._start, self.config, target.decoder.device)
        else:
            model = self._new_model(target, train)
        model.bind_target(target.embedding, target.head)
        return model

    def _new_model(self, target: TrainingTarget, train: Sequence[Dialogue]) -> DrafterModel:
        config = self.config
        model = DrafterModel(config)
        fill_random(model, self.recipe.train.seed)
        if config.has_reduced_vocabulary:
            answers, prompts = (token_counts(train, config.vocab_size, of_answers=of) for of in (True, False))
            ids = torch.from_numpy(most_frequent(answers, prompts, config.draft_vocab_size))
            model.d2t.copy_(ids - torch.arange(len(ids)))
        if self.recipe.drafter.from_layers:
            copy_target_layers(model, target.weights, self.recipe.drafter.from_layers)
        return model.to(target.decoder.device)

    def _states(self, target: TrainingTarget, dialogues: Sequence[Dialogue], progress: Progress) -> StateSource:
        reader = TargetReader(target.decoder, self.config.target_layer_ids)
        if not self.recipe.train.state_cache:
            if self._shared_states is not None:
                raise SettingError(f"--states {self._shared_states}: [train] state_cache = false keeps none; drop one")
            return FreshStates(reader, dialogues)
        identity = {
            "target": dataclasses.asdict(self.config.target),
            "layers": list(self.config.target_layer_ids),
            "arithmetic": target.decoder.description,
            "dialogues": digest(dialogues),
        }
        folder = self._shared_states
        if folder is not None:
            check_states(folder, _plain(identity), len(dialogues))
        cache = StateCache(folder or self.folder / "states", dialogues, reader, _plain(identity))
        total = len(dialogues)
        progress.report(f"Target states, {cache.num_bytes / 1e9:.2f} GB", cache.num_done, total)
        cache.fill(lambda done: progress.report(f"Target states, {cache.num_bytes / 1e9:.2f} GB", done, total))
        return cache

    def _identity(self, dialogues: Sequence[Dialogue]) -> dict[str, Any]:
        """Everything the weights depend on; how often the run is measured and saved is not part of it."""
        train = dataclasses.asdict(self.recipe.train)
        for name in ("evaluate_every", "checkpoint_every", "state_cache"):
            train.pop(name)
        identity = {
            "train": _plain(train),
            "drafter": _plain(dataclasses.asdict(self.recipe.drafter)),
            "target": _plain(dataclasses.asdict(self.config.target)),
            "dialogues": digest(dialogues),
        }
        if self._start is not None:
            identity["start"] = _plain(self._start.config.training)
        return identity


def digest(dialogues: Sequence[Dialogue]) -> str:
    """A fingerprint of dialogues: ids, which are answers, and order."""
    found = hashlib.sha256()
    for dialogue in dialogues:
        found.update(len(dialogue).to_bytes(4, "little"))
        found.update(dialogue.token_ids.astype("<i4").tobytes())
        found.update(np.packbits(dialogue.is_answer).tobytes())
    return found.hexdigest()


def _cut(dialogue: Dialogue, length: int) -> Dialogue:
    return dataclasses.replace(dialogue, token_ids=dialogue.token_ids[:length], is_answer=dialogue.is_answer[:length])


def _without_folders(recipe: Recipe) -> Recipe:
    """Files of prompts by their names alone: a checkpoint tells nobody where its maker keeps them."""
    kinds = {kind if kind in PROMPT_KINDS else Path(kind).name: share for kind, share in recipe.data.kinds.items()}
    return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, kinds=kinds))


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples as lists, keys as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
