"""ChoiceProcessor: engine outputs of one choice in, text, logprobs and an ending out; all three always agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.detokenizer import Detokenizer
from slipstream.engine.stop_strings import length_that_may_begin_a_stop
from slipstream.engine.vocabulary import Vocabulary
from slipstream.request import FinishReason, Logprobs, RequestOutput, SamplingParams


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token, with the token written out.

    Attributes:
        token: as text; `bytes:\\x..` when it is no whole characters.
        token_bytes: its bytes, from which characters spread over tokens can be put together.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """One output position.

    Attributes:
        chosen: the token that was sampled. rank: its rank, 1 is the likeliest.
        top: the likeliest tokens, best first; as many as were asked for.
        text_offset: characters of the choice's text before this token.
    """

    chosen: TokenLogprob
    rank: int
    top: tuple[TokenLogprob, ...]
    text_offset: int


@dataclass(slots=True)
class ChoiceDelta:
    """What is new in one choice.

    Attributes:
        text: whole characters; what might still begin a stop string is held back.
        token_ids: new tokens, whose text may come with a later delta.
        logprobs: one entry per new token when asked for.
        finish_reason: set on the last delta of the choice.
        num_verified, num_accepted: drafts checked and accepted in the step. The first `num_accepted` of the tokens
            were drafted, the others are the target's own.
        prompt_logprobs: with the first delta when asked for: one entry per prompt token, None for the first one, of
            which nothing is known. Their text offsets are those of the prompt's text.
        token_texts: characters that became certain with each new token, before anything is held back or cut at a stop
            string.
        refused_draft_ids: verified drafts that were not accepted; they stood behind the accepted ones.
    """

    choice_index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_verified: int = 0
    num_accepted: int = 0
    error: str | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    token_texts: Sequence[str] = ()
    refused_draft_ids: Sequence[int] = ()


class ChoiceProcessor:
    """Holds the text of one choice that is not yet certain."""

    __slots__ = (
        "_choice_index",
        "_detokenizer",
        "_num_characters",
        "_pending",
        "_prompt_token_ids",
        "_sampling",
        "_vocabulary",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        sampling: SamplingParams,
        choice_index: int,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """The prompt matters only for what is reported of it."""
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._choice_index = choice_index
        self._prompt_token_ids = prompt_token_ids
        self._detokenizer = Detokenizer(vocabulary)
        self._pending = ""
        self._num_characters = 0

    def process(self, output: RequestOutput) -> ChoiceDelta:
        """Turn one engine output into a delta. The engine has cut the tokens at the stop already."""
        sampling = self._sampling
        token_ids = output.new_token_ids
        by_token = output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str)
        offsets: list[int] = []
        texts: list[str] = []
        for index, token_id in enumerate(token_ids):
            offsets.append(self._num_characters)
            text = self._detokenizer.push(token_id)
            if by_token and index == len(token_ids) - 1 and not sampling.include_stop_str_in_output:
                text = ""
            self._pending += text
            self._num_characters += len(text)
            texts.append(text)
        if isinstance(output.stop_reason, str):
            self._cut_at_stop(output.stop_reason, len(texts[-1]) if texts else 0)
        held = 0
        if sampling.stop and output.finish_reason is None:
            held = length_that_may_begin_a_stop(self._pending, sampling.stop)
        ready = len(self._pending) - held
        text, self._pending = self._pending[:ready], self._pending[ready:]
        return ChoiceDelta(
            choice_index=self._choice_index,
            text=text,
            token_ids=token_ids,
            logprobs=self._logprobs(token_ids, output.logprobs, offsets),
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            num_verified=output.num_verified,
            num_accepted=output.num_accepted,
            error=output.error,
            prompt_logprobs=None if output.prompt_logprobs is None else self._of_prompt(output.prompt_logprobs),
            token_texts=texts,
            refused_draft_ids=output.refused_draft_ids,
        )

    def _cut_at_stop(self, stop: str, length_of_last: int) -> None:
        # The last token completed it; its beginning is still pending, because it may begin a stop.
        first_end = len(self._pending) - length_of_last + 1
        start = self._pending.find(stop, max(first_end - len(stop), 0))
        if start < 0:
            return
        end = start + len(stop) if self._sampling.include_stop_str_in_output else start
        self._pending = self._pending[:end]

    def _logprobs(
        self, token_ids: list[int], entries: list[Logprobs] | None, offsets: list[int]
    ) -> list[PositionLogprobs] | None:
        if self._sampling.logprobs is None:
            return None
        return [
            self._position(token_id, entry, offset)
            for token_id, entry, offset in zip(token_ids, entries or (), offsets, strict=True)
        ]

    def _of_prompt(self, entries: list[Logprobs]) -> list[PositionLogprobs | None]:
        positions: list[PositionLogprobs | None] = [None]
        detokenizer = Detokenizer(self._vocabulary)
        offset = len(detokenizer.push(self._prompt_token_ids[0]))
        for token_id, entry in zip(self._prompt_token_ids[1:], entries, strict=True):
            positions.append(self._position(token_id, entry, offset))
            offset += len(detokenizer.push(token_id))
        return positions

    def _position(self, token_id: int, entry: Logprobs, text_offset: int) -> PositionLogprobs:
        return PositionLogprobs(
            self._token(token_id, entry.logprob),
            entry.rank,
            tuple(self._token(alternative, logprob) for alternative, logprob in entry.top),
            text_offset,
        )

    def _token(self, token_id: int, logprob: float) -> TokenLogprob:
        vocabulary = self._vocabulary
        return TokenLogprob(token_id, vocabulary.display(token_id), vocabulary.bytes_of(token_id), logprob)
