"""The training loop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from slipstream.config import SettingError
from slipstream.training.batches import BatchMaker
from slipstream.training.block_pass import BlockPass
from slipstream.training.held_out import HeldOutFigures, measure
from slipstream.training.run_state import History, RunFile, RunState
from slipstream.training.schedule import learning_rate
from slipstream.training.settings import TrainSettings

LOG_EVERY = 20


class DivergedError(RuntimeError):
    """The loss is no number any more."""


@dataclass(slots=True)
class Trainer:
    """Trains a drafter; goes on where the run file says.

    Attributes:
        step: steps done.
        on_step: told after each step how many are done and its loss. on_held_out: told of each measurement.
    """

    block_pass: BlockPass
    batches: BatchMaker
    held_out: BatchMaker
    settings: TrainSettings
    run_file: RunFile
    on_step: Callable[[int, float], None] = lambda step, loss: None
    on_held_out: Callable[[int, HeldOutFigures], None] = lambda step, figures: None
    step: int = 0
    history: History = field(default_factory=History)
    _optimizer: torch.optim.AdamW = field(init=False)
    _pending: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = self.settings
        self._optimizer = torch.optim.AdamW(
            self.block_pass.model.parameters(),
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        state = self.run_file.read(self.block_pass.model.fc.weight.device)
        if state is not None:
            _check_draft_vocabulary(self.block_pass.model.state_dict(), state.model, self.run_file)
            self.block_pass.model.load_state_dict(state.model)
            self._optimizer.load_state_dict(dict(state.optimizer))
            self.step, self.history, self._pending = state.step, state.history, state.pending

    def run(self, until: int | None = None) -> None:
        """Train to the end, or until so many steps are done. Saves on the way, at the end, and when interrupted."""
        settings = self.settings
        end = settings.num_steps if until is None else min(until, settings.num_steps)
        try:
            while self.step < end:
                self._train_step()
                if self.step % settings.evaluate_every == 0 or self.step == settings.num_steps:
                    self._measure()
                if self.step % settings.checkpoint_every == 0:
                    self.save()
        finally:
            self.save()

    def save(self) -> None:
        """Write the state of the run."""
        model = self.block_pass.model.state_dict()
        optimizer = self._optimizer.state_dict()
        self.run_file.write(RunState(self.step, model, optimizer, self.history, self._pending))

    def _train_step(self) -> None:
        settings, model = self.settings, self.block_pass.model
        rate = learning_rate(self.step, settings.num_steps, settings.learning_rate, settings.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        batch = self.batches.at_step(self.step, settings.num_sequences, settings.seed)
        result = self.block_pass.run(batch)
        if not math.isfinite(result.parts["loss"]):
            raise DivergedError(
                f"the loss of step {self.step} is {result.parts['loss']}; a lower learning rate than "
                f"{settings.learning_rate:g} may help"
            )
        self._optimizer.zero_grad(set_to_none=True)
        result.loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), settings.clip))
        self._optimizer.step()
        self.step += 1
        self._pending.append({**result.parts, "gradient_norm": norm})
        if self.step % LOG_EVERY == 0 or self.step == settings.num_steps:
            names = self._pending[0].keys()
            means = {name: sum(entry[name] for entry in self._pending) / len(self._pending) for name in names}
            self.history.training.append({"step": self.step, "learning_rate": rate, **means})
            self._pending = []
        self.on_step(self.step, result.parts["loss"])

    def _measure(self) -> None:
        figures = measure(self.block_pass, self.held_out, self.settings.num_sequences, self.settings.seed)
        self.history.held_out.append({"step": self.step, **dataclasses.asdict(figures)})
        self.on_held_out(self.step, figures)


def _check_draft_vocabulary(new: Mapping[str, Tensor], old: Mapping[str, Tensor], run_file: RunFile) -> None:
    """The head's rows and the labels were chosen by the new one: a run with another one would learn wrong tokens."""
    if "d2t" in new and not torch.equal(new["d2t"], old["d2t"]):
        raise SettingError(
            f"{run_file.path} is of a run with another draft vocabulary, as an earlier version chose it; give another "
            "--output, or remove it to begin anew"
        )
