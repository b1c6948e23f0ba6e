"""Stop strings: where they end a text (StopStringFinder), and how requests end by them (TextStopChecker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.engine.detokenizer import Detokenizer
from slipstream.engine.vocabulary import Vocabulary
from slipstream.request import FinishReason, Request
from slipstream.scheduler.protocol import StopChecker, StopVerdict


class StopStringFinder:
    """Finds the stop string that is completed first in a text that arrives piece by piece.

    Only the end of the text that could still begin a stop string is kept.
    """

    __slots__ = ("_longest", "_stops", "_tail")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops))
        self._tail = ""

    def push(self, text: str, *, armed: bool = True) -> str | None:
        """The stop string completed first by `text`, the longest of those completed at the same character, or None.

        With `armed` False the text is only remembered: a stop completed in it never counts.
        """
        if not text:
            return None
        tail, window = self._tail, self._tail + text
        self._tail = window[-(self._longest - 1) :] if self._longest > 1 else ""
        if not armed:
            return None
        found: list[tuple[int, int, str]] = []
        for stop in self._stops:
            start = window.find(stop, max(len(tail) - len(stop) + 1, 0))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        return min(found)[2] if found else None


def length_that_may_begin_a_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a stop string; 0 when there is none."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


@dataclass(slots=True)
class _TextState:
    """How far one request's output has been read."""

    detokenizer: Detokenizer
    finder: StopStringFinder
    num_tokens: int = 0


class TextStopChecker:
    """Adds stop strings to a checker of token stops. Reads only requests that have stop strings, token by token.

    A string stops at the earliest token that completes it, wherever that lies in an accepted block, and only when
    more than `min_tokens` tokens are there. What is kept per request follows from its output and is rebuilt when it
    does not match (after a result was dropped).
    """

    def __init__(self, token_stops: StopChecker, vocabulary: Vocabulary) -> None:
        self._token_stops = token_stops
        self._vocabulary = vocabulary
        self._states: dict[str, _TextState] = {}

    def check(self, request: Request, new_token_ids: list[int]) -> StopVerdict | None:
        """See StopChecker."""
        verdict = self._token_stops.check(request, new_token_ids)
        if not request.sampling.stop:
            return verdict
        num_read = len(new_token_ids)
        if verdict is not None:
            # A stop token is no text.
            num_read = verdict.num_kept_tokens - (verdict.finish_reason is FinishReason.STOP)
        state = self._state_of(request)
        for index, token_id in enumerate(new_token_ids[:num_read]):
            stop = self._read(state, request, token_id)
            if stop is not None:
                return StopVerdict(index + 1, FinishReason.STOP, stop)
        return verdict

    def forget(self, request_id: str) -> None:
        """The request ended or was aborted."""
        self._states.pop(request_id, None)

    def _state_of(self, request: Request) -> _TextState:
        state = self._states.get(request.request_id)
        if state is None or state.num_tokens != request.num_output_tokens:
            state = _TextState(Detokenizer(self._vocabulary), StopStringFinder(request.sampling.stop))
            self._states[request.request_id] = state
            for token_id in request.output_token_ids:
                self._read(state, request, token_id)
        return state

    @staticmethod
    def _read(state: _TextState, request: Request, token_id: int) -> str | None:
        state.num_tokens += 1
        armed = state.num_tokens > request.sampling.min_tokens
        return state.finder.push(state.detokenizer.push(token_id), armed=armed)
