"""What the case tests share: a scheduler in front of the scripted target, with a drafter by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from driver import Run, drive, make_config

from slipstream.config import SchedulerConfig
from slipstream.request import Request
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.executor_state import RequestRows
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import (
    DraftBlock,
    Drafter,
    DraftRequest,
    RequestResult,
    SampledTokens,
    SampleRow,
    StepPlan,
    StepResult,
)
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.step_builder import StepBuilder
from slipstream.simulation.drafters import ConstantDrafter, ScriptedDrafter, half, oracle, predict_with, ragged, wrong
from slipstream.simulation.scripted import (
    HashedLogits,
    Logits,
    LogitsFunction,
    RowSampler,
    ScriptedExecutor,
    sample_greedily,
)
from slipstream.speculation.ngram import NgramDrafter

VOCAB = 32
EOS = 1
DRAFTERS = ("oracle", "wrong", "half", "ragged", "ngram")
"""Every drafter that a lossless test runs over."""


def counting(prefix: Sequence[int]) -> Logits:
    """A target that counts 2, 3, … 9, 2, …: it repeats itself, so that prompt lookup finds something."""
    logits = np.zeros(VOCAB)
    logits[2 + (prefix[-1] - 1) % 8] = 8.0
    return logits


def seeded_sampler(vocab_size: int = VOCAB) -> RowSampler:
    """The product's own sampler, with every parameter, in front of scripted logits."""
    sampler = Sampler(vocab_size)

    def sample(logits: Logits, rows: Sequence[SampleRow]) -> SampledTokens:
        return sampler.sample(torch.from_numpy(logits), rows)

    return sample


def make_drafter(
    name: str | None, layout_name: str, logits: LogitsFunction, sampler: RowSampler, most: int
) -> Drafter | None:
    """A scripted drafter, or prompt lookup, that obeys a layout."""
    layout = LAYOUTS[layout_name]
    predict = predict_with(logits, sampler)
    match name:
        case None:
            return None
        case "oracle":
            return oracle(layout, predict, VOCAB)
        case "wrong":
            return wrong(layout, predict, VOCAB)
        case "half":
            return half(layout, predict, VOCAB, 2)
        case "ragged":
            return ragged(layout, predict, VOCAB, most)
        case "eos":
            return ConstantDrafter(layout, EOS)
        case "ngram":
            drafter = NgramDrafter(1, 4)
            drafter.layout = layout  # lookup under another method's budgets
            return drafter
    raise ValueError(name)


@dataclass
class Rig:
    """A scheduler, its executor, and the drafter in it."""

    config: SchedulerConfig
    scheduler: Scheduler
    executor: ScriptedExecutor
    drafter: Drafter | None

    def drive(self, requests: Iterable[Request] = (), **kwargs: Any) -> Run:
        return drive(self.scheduler, self.executor, requests, **kwargs)

    @property
    def pool(self):
        return self.scheduler.kv.pool


def make_rig(
    drafter: str | Drafter | None = None,
    *,
    logits: LogitsFunction | None = None,
    sampler: RowSampler = sample_greedily,
    executor_type: Callable[..., ScriptedExecutor] = ScriptedExecutor,
    scheduler_parts: dict[str, Any] | None = None,
    **config_fields: Any,
) -> Rig:
    """A rig; `config_fields` as in `make_config`. Drafters given by name need `num_speculative_tokens`."""
    config = make_config(**config_fields)
    logits = logits if logits is not None else HashedLogits(VOCAB)
    if isinstance(drafter, str):
        drafter = make_drafter(drafter, config.layout_name, logits, sampler, config.num_speculative_tokens)
    executor = executor_type(
        logits,
        num_kv_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        drafter=drafter,
        sampler=sampler,
        max_model_len=config.max_model_len,
    )
    return Rig(config, Scheduler(config, **(scheduler_parts or {})), executor, drafter)


def plain_tokens(requests: Iterable[Request], **kwargs: Any) -> dict[str, list[int]]:
    """The same requests without speculation, one at a time, in a roomy pool with whole prompts and no cache."""
    tokens: dict[str, list[int]] = {}
    for request in requests:
        rig = make_rig(
            None,
            max_num_batched_tokens=4096,
            max_num_seqs=1,
            num_kv_blocks=512,
            enable_prefix_caching=False,
            max_model_len=kwargs.pop("max_model_len", 4096),
            **kwargs,
        )
        tokens |= rig.drive([request]).token_ids
    return tokens


def offering(*counts: int, layout_name: str = "ngram", logits: LogitsFunction) -> ScriptedDrafter:
    """Right drafts, of which request `r<i>` offers `counts[i]`."""
    return ScriptedDrafter(
        LAYOUTS[layout_name],
        predict_with(logits),
        VOCAB,
        num_offered=lambda request, _call: counts[int(request.request_id[1:])],
    )


def prompt(length: int, seed: int = 0) -> list[int]:
    """A prompt without EOS; another seed is another text."""
    generator = np.random.default_rng([7, seed])
    return [int(token) for token in generator.integers(2, VOCAB, length)]


def shares(plan: StepPlan) -> dict[str, int]:
    """Target rows per request."""
    return {entry.request_id: entry.num_target_rows for entry in plan.requests}


class CountingExecutor:
    """Makes no text, only counts: for budgets at sizes where a target would take too long. Accepts every draft."""

    def __init__(self, accepted: int = 1 << 30) -> None:
        self._accepted = accepted

    def execute(self, plan: StepPlan) -> StepResult:
        results = []
        for entry in plan.requests:
            accepted = min(entry.num_verify_rows, self._accepted)
            tokens = [2] * (accepted + 1) if entry.emits else []
            results.append(
                RequestResult(
                    entry.request_id, entry.epoch, tokens, entry.num_verify_rows, accepted, entry.num_draft_tokens
                )
            )
        return StepResult(
            plan.step, results, num_target_rows=plan.num_target_rows, num_draft_query_rows=plan.num_draft_query_rows
        )


class ContextExecutor(ScriptedExecutor):
    """Notes the drafter's KV as it stands before each draft of each request, and the drafts made from it.

    Attributes:
        contexts: request id -> per draft pass, the tokens whose drafter KV precedes the anchor.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.contexts: dict[str, list[list[int]]] = {}

    def _check_draft_kv(self, rows: RequestRows, num_slots: int) -> None:
        state = rows.state
        slots = self._slots(state.block_ids, np.arange(len(state.token_ids) - 1))
        self.contexts.setdefault(state.request_id, []).append(self._draft_kv[slots].tolist())
        super()._check_draft_kv(rows, num_slots)


class NotingDrafter:
    """Passes on what another drafter gives, and keeps requests and drafts.

    Attributes:
        asked: request id -> per call (known tokens, drafts wanted). drafts: request id -> per call the drafts.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.layout = drafter.layout
        self.asked: dict[str, list[tuple[list[int], int]]] = {}
        self.drafts: dict[str, list[list[int]]] = {}
        self._drafter = drafter

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        blocks = self._drafter.propose(requests)
        for request, block in zip(requests, blocks, strict=True):
            known = (list(request.token_ids), request.num_draft_tokens)
            self.asked.setdefault(request.request_id, []).append(known)
            self.drafts.setdefault(request.request_id, []).append(list(block.token_ids))
        return blocks

    def release(self, request_id: str) -> None:
        self._drafter.release(request_id)


class Preempting:
    """Budget rules that first take the blocks of chosen requests, as a pool that ran dry would."""

    def __init__(self, rig: Rig, victims: Callable[[Request, int], bool]) -> None:
        """`victims(request, step)`: whether a running request loses its blocks in this step."""
        self._budget = rig.scheduler._budget
        self._victims = victims
        rig.scheduler._budget = self  # type: ignore[assignment]

    def fill(self, step: StepBuilder) -> None:
        for request in list(step.running):
            if self._victims(request, step.step):
                step.preempt(request)
        self._budget.fill(step)
