"""AssistantReader: splits what a model writes into reasoning, answer and tool calls, as it arrives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slipstream.engine.stop_strings import length_that_may_begin_a_stop
from slipstream.models.chat_format import CALL_START, THINK_END, THINK_START
from slipstream.server.tool_calls import ToolCallDelta, ToolCallReader


class Reasoning(StrEnum):
    """Where the model's text begins: it never reasons, may open its reasoning first, or is in the middle of it."""

    NONE = "none"
    POSSIBLE = "possible"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer, or of the reasoning before it."""

    text: str
    is_reasoning: bool = False


AssistantDelta = TextDelta | ToolCallDelta


class _Where(StrEnum):
    START = "before anything"
    REASONING = "in the reasoning"
    ANSWER = "in the answer"
    CALL = "in a tool call"


class AssistantReader:
    """Cut anywhere, the same text gives the same reasoning, answer and calls. Only markers vanish, and blanks beside
    tool calls; tool syntax inside the reasoning is reasoning.

    Attributes:
        num_calls: tool calls given so far.
    """

    def __init__(self, reasoning: Reasoning, *, reads_tools: bool, max_calls: int | None = None) -> None:
        """Calls after the first `max_calls` are dropped."""
        self.num_calls = 0
        self._max_calls = max_calls
        self._reads_tools = reads_tools
        self._where = {
            Reasoning.NONE: _Where.ANSWER,
            Reasoning.POSSIBLE: _Where.START,
            Reasoning.OPEN: _Where.REASONING,
        }[reasoning]
        self._pending = ""
        self._deltas: list[AssistantDelta] = []
        self._call: ToolCallReader | None = None
        self._raw_call = ""

    def read(self, text: str, *, is_last: bool = False) -> list[AssistantDelta]:
        """What became certain with this text, in order; with the last one, all that is left."""
        self._pending += text
        while self._advance():
            pass
        if is_last:
            self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _advance(self) -> bool:
        """Handle the beginning of what is pending; False when more text is needed."""
        match self._where:
            case _Where.START:
                return self._start()
            case _Where.REASONING:
                return self._until(THINK_END, is_reasoning=True, then=_Where.ANSWER)
            case _Where.ANSWER:
                if not self._reads_tools:
                    self._say(self._pending)
                    self._pending = ""
                    return False
                return self._until(CALL_START, is_reasoning=False, then=_Where.CALL)
            case _Where.CALL:
                return self._in_call()

    def _start(self) -> bool:
        text = self._pending.lstrip()
        if text.startswith(THINK_START):
            self._pending = text[len(THINK_START) :]
            self._where = _Where.REASONING
            return True
        if THINK_START.startswith(text):
            return False
        self._where = _Where.ANSWER
        return True

    def _until(self, marker: str, *, is_reasoning: bool, then: _Where) -> bool:
        """Pass text on up to a marker, and hold back what may belong to it."""
        before, found, after = self._pending.partition(marker)
        if found:
            self._say(before if is_reasoning else before.rstrip(), is_reasoning)
            self._pending = after
            self._where = then
            self._raw_call = before[len(before.rstrip()) :] + marker
            return True
        ready = len(before) - length_that_may_begin_a_stop(before, [marker])
        if not is_reasoning:
            ready = len(before[:ready].rstrip())  # blanks before a call are no answer
        self._say(before[:ready], is_reasoning)
        self._pending = before[ready:]
        return False

    def _in_call(self) -> bool:
        call = self._call
        if call is None:
            call = self._call = ToolCallReader(self._add_call, self.num_calls)
        used = call.read(self._pending)
        self._raw_call += self._pending[:used]
        self._pending = self._pending[used:]
        if not call.is_done and not call.is_malformed:
            return False
        self._end_call(call)
        self._where = _Where.ANSWER
        return True

    def _end_call(self, call: ToolCallReader) -> None:
        if not call.num_announced:
            self._say(self._raw_call)
        self.num_calls += call.num_announced
        self._call, self._raw_call = None, ""

    def _flush(self) -> None:
        if self._where is _Where.CALL and self._call is not None:
            self._end_call(self._call)
        is_reasoning = self._where is _Where.REASONING
        if is_reasoning or self._pending.strip() or not self.num_calls:
            self._say(self._pending, is_reasoning)
        self._pending = ""
        if self._max_calls is not None:
            self.num_calls = min(self.num_calls, self._max_calls)

    def _add_call(self, delta: ToolCallDelta) -> None:
        if self._max_calls is None or delta.index < self._max_calls:
            self._deltas.append(delta)

    def _say(self, text: str, is_reasoning: bool = False) -> None:
        if not text:
            return
        last = self._deltas[-1] if self._deltas else None
        if isinstance(last, TextDelta) and last.is_reasoning == is_reasoning:
            self._deltas[-1] = TextDelta(last.text + text, is_reasoning)
        else:
            self._deltas.append(TextDelta(text, is_reasoning))
