"""Dialogues that the target writes: its answers always, the user's turns where nobody else did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.engine.llm import LLM, Choice
from slipstream.request import FinishReason, SamplingParams
from slipstream.training.chat_turns import ChatTurns
from slipstream.training.corpus import Dialogue
from slipstream.training.prompts import DialogueStart
from slipstream.training.repetition import MAX_REPEATED_SHARE, loop_start, repeated_share
from slipstream.training.settings import DataSettings

USER_TEMPERATURE = 1.0
MAX_USER_TOKENS = 128
MIN_USER_TOKENS = 3
MAX_MARKUP_TOKENS = 64
"""What a template writes around a turn, at most."""


@dataclass(slots=True)
class DropCounts:
    """Why dialogues were left out, and how many answers were cut at a loop."""

    looping: int = 0
    repetitive: int = 0
    short: int = 0
    bad_user_turn: int = 0
    long_prompt: int = 0


@dataclass(slots=True)
class _Draft:
    """A dialogue in the making."""

    start: DialogueStart
    token_ids: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)
    is_over: bool = False
    is_dropped: bool = False
    ended_by_itself: bool = False

    def add(self, token_ids: Sequence[int], *, is_answer: bool) -> None:
        self.token_ids += token_ids
        self.is_answer += [is_answer] * len(token_ids)


class DialogueWriter:
    """Writes many dialogues together. The same starts give the same dialogues on the same machine.

    Args:
        llm: without speculation and without prefix caching, so that what it did before leaves no trace.
    """

    def __init__(self, llm: LLM, settings: DataSettings) -> None:
        self.dropped = DropCounts()
        self._llm = llm
        self._settings = settings
        self._turns = ChatTurns.of(llm.built.source)
        self._max_tokens = llm.built.resolution.scheduler.max_model_len
        config, tokenizer = llm.built.source.config, llm.built.source.tokenizer
        self._eos = {*config.eos_token_ids, *tokenizer.eos_token_ids}

    def write(self, starts: Sequence[DialogueStart]) -> list[Dialogue]:
        """Dialogues of these starts, without those that were dropped."""
        drafts = [_Draft(start) for start in starts]
        self._add_first_prompts(drafts)
        self._answer(drafts, turn=0)
        going_on = [d for d in drafts if d.start.has_second_turn and d.ended_by_itself and not d.is_over]
        if self._turns.before_next_user is not None:
            self._ask_again(going_on, self._turns.before_next_user)
            self._answer(going_on, turn=1)
        return [self._finished(draft) for draft in drafts if self._is_kept(draft)]

    def _add_first_prompts(self, drafts: Sequence[_Draft]) -> None:
        before, after = self._turns.before_user, self._turns.before_answer
        self._write_user_turns([d for d in drafts if d.start.is_opening], before, turn=0)
        for draft in drafts:
            if not draft.start.is_opening:
                draft.add(self._encode(before + draft.start.text + after), is_answer=False)
            if not draft.is_dropped and len(draft.token_ids) > self._settings.max_prompt_tokens:
                self._drop(draft, "long_prompt")

    def _ask_again(self, drafts: Sequence[_Draft], before: str) -> None:
        for eos in self._eos:  # the answer has its end already
            before = before.removeprefix(self._llm.built.source.tokenizer.token_text(eos))
        self._write_user_turns(drafts, before, turn=1)
        for draft in drafts:
            draft.is_over |= draft.is_dropped
            draft.is_dropped = False  # the first turn stays

    def _write_user_turns(self, drafts: Sequence[_Draft], before: str, *, turn: int) -> None:
        """Let the model go on as the user, and close the turn."""
        drafts = self._with_room(drafts, MAX_USER_TOKENS + MAX_MARKUP_TOKENS)
        after = self._encode(self._turns.before_answer)
        openings = [self._encode(before + (d.start.text if turn == 0 else "")) for d in drafts]
        sampling = [
            SamplingParams(max_tokens=MAX_USER_TOKENS, temperature=USER_TEMPERATURE, top_p=0.95, seed=_seed(d, turn, 0))
            for d in drafts
        ]
        prompts = [(*d.token_ids, *opening) for d, opening in zip(drafts, openings, strict=True)]
        for draft, opening, choice in zip(drafts, openings, self._generate(prompts, sampling), strict=True):
            ids = _without_end(choice.token_ids, self._eos)
            written = np.array(ids, np.int32)
            is_good = choice.finish_reason is FinishReason.STOP and len(ids) >= MIN_USER_TOKENS
            if not is_good or loop_start(written) is not None:
                self._drop(draft, "bad_user_turn")
                continue
            draft.add([*opening, *ids, *after], is_answer=False)

    def _answer(self, drafts: Sequence[_Draft], *, turn: int) -> None:
        drafts = [d for d in drafts if not (d.is_dropped or d.is_over)]
        asked = self._with_room(drafts, self._settings.max_answer_tokens)
        sampling = [
            SamplingParams(
                max_tokens=self._settings.max_answer_tokens, temperature=d.start.temperature, seed=_seed(d, turn, 1)
            )
            for d in asked
        ]
        for draft, choice in zip(asked, self._generate([d.token_ids for d in asked], sampling), strict=True):
            ids = list(choice.token_ids)
            draft.ended_by_itself = choice.finish_reason is FinishReason.STOP
            if draft.ended_by_itself and not (ids and ids[-1] in self._eos):
                ids.append(choice.stop_reason if isinstance(choice.stop_reason, int) else min(self._eos))
            loop = loop_start(np.array(ids, np.int32))
            if loop is not None:
                self.dropped.looping += 1
                ids = ids[:loop]
                draft.ended_by_itself = False
            draft.add(ids, is_answer=True)

    def _with_room(self, drafts: Sequence[_Draft], num_tokens: int) -> list[_Draft]:
        """Those that can take so many tokens more; the others are dropped, or end with what they have."""
        roomy = []
        for draft in drafts:
            if len(draft.token_ids) + num_tokens <= self._max_tokens:
                roomy.append(draft)
            elif any(draft.is_answer):
                draft.is_over = True
            else:
                self._drop(draft, "long_prompt")
        return roomy

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sequence[SamplingParams]) -> list[Choice]:
        if not prompts:
            return []
        return [result.choices[0] for result in self._llm.generate([tuple(p) for p in prompts], sampling)]

    def _is_kept(self, draft: _Draft) -> bool:
        if draft.is_dropped:
            return False
        answers = np.array(draft.token_ids, np.int32)[np.array(draft.is_answer, bool)]
        if len(answers) < self._settings.min_answer_tokens:
            self._drop(draft, "short")
        elif repeated_share(answers) > MAX_REPEATED_SHARE:
            self._drop(draft, "repetitive")
        return not draft.is_dropped

    def _finished(self, draft: _Draft) -> Dialogue:
        ids, is_answer = np.array(draft.token_ids, np.int32), np.array(draft.is_answer, bool)
        return Dialogue(ids, is_answer, draft.start.kind, draft.start.temperature)

    def _drop(self, draft: _Draft, reason: str) -> None:
        draft.is_dropped = True
        setattr(self.dropped, reason, getattr(self.dropped, reason) + 1)

    def _encode(self, text: str) -> list[int]:
        template = self._llm.built.source.chat_template
        return list(self._llm.built.source.tokenizer.encode(text, add_special_tokens=template is None))


def _seed(draft: _Draft, turn: int, side: int) -> int:
    return (draft.start.seed + 4 * turn + side) % (1 << 62)


def _without_end(token_ids: Sequence[int], eos: set[int]) -> list[int]:
    return list(token_ids[:-1] if token_ids and token_ids[-1] in eos else token_ids)
