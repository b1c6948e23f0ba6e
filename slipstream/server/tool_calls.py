"""ToolCallReader: one `<tool_call>` block of JSON, read as it arrives, however it is cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from slipstream.models.chat_format import CALL_END

ARGUMENT_KEYS = ("arguments", "parameters")
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new of a call: its name comes first and whole, its arguments as the model writes them.

    Attributes:
        index: 0 for the message's first call. name: set on a call's first delta only.
        arguments: the next piece of the JSON text.
    """

    index: int
    name: str | None
    arguments: str


class _Where(StrEnum):
    BETWEEN = "between calls"
    MEMBERS = "where a key, a comma or the end of the call may stand"
    KEY = "in a key"
    COLON = "before a value"
    VALUE = "in a value"


class ToolCallReader:
    """Reads what stands after `<tool_call>`, up to and including `</tool_call>`: one call `{"name": …, "arguments":
    {…}}`, several, or a list of them.

    Arguments that the model wrote before the name, or as a string that holds JSON, are given once they are complete.
    After a first good call, what is no JSON is passed over.

    Attributes:
        is_done: the end marker was read. is_malformed: it is no call at all.
        num_announced: calls whose names were given, the last of them perhaps unfinished.
    """

    def __init__(self, emit: Callable[[ToolCallDelta], None], first_index: int) -> None:
        self.is_done = False
        self.is_malformed = False
        self.num_announced = 0
        self._emit = emit
        self._first_index = first_index
        self._where = _Where.BETWEEN
        self._begin_call()

    def read(self, text: str) -> int:
        """Read as far as certain; gives the number of characters that were, which must not be sent again."""
        position = 0
        while position < len(text) and not (self.is_done or self.is_malformed):
            used = self._step(text, position)
            if not used:
                break
            position += used
        self._pass_on()
        return position

    def _begin_call(self) -> None:
        self._name: str | None = None
        self._is_announced = False
        self._key = ""
        self._value: list[str] = []
        self._is_first = True
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._arguments: list[str] = []
        self._has_arguments = False

    def _step(self, text: str, position: int) -> int:
        character = text[position]
        match self._where:
            case _Where.BETWEEN:
                return self._between(text, position, character)
            case _Where.MEMBERS:
                if character == '"':
                    self._where, self._key = _Where.KEY, character
                elif character == "}":
                    self._end_call()
                elif character != "," and character not in _BLANKS:
                    self._spoil()
                return 1
            case _Where.KEY:
                self._key += character
                if not self._in_open_string(character):
                    self._where = _Where.COLON
                return 1
            case _Where.COLON:
                if character == ":":
                    self._where, self._value, self._is_first = _Where.VALUE, [], True
                elif character not in _BLANKS:
                    self._spoil()
                return 1
            case _Where.VALUE:
                return self._in_value(character)

    def _between(self, text: str, position: int, character: str) -> int:
        if character == "{":
            self._begin_call()
            self._where = _Where.MEMBERS
        elif character == "<":
            rest = text[position : position + len(CALL_END)]
            if rest == CALL_END:
                self.is_done = True
                self.is_malformed = not self.num_announced
                return len(CALL_END)
            if CALL_END.startswith(rest):
                return 0
            self._spoil()
        elif character not in "[,]" and character not in _BLANKS:
            self._spoil()
        return 1

    def _in_open_string(self, character: str) -> bool:
        """Follow a string that began before this character; False when the character closes it."""
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            return False
        return True

    def _in_value(self, character: str) -> int:
        if self._in_string:
            self._value.append(character)
            self._in_string = self._in_open_string(character)
            if not self._in_string and not self._depth:
                self._end_value()
            return 1
        if self._is_first:
            if character in _BLANKS:
                return 1
            self._is_first = False
            if character == "{" and not self._has_arguments and _loaded(self._key) in ARGUMENT_KEYS:
                self._value = self._arguments  # an object is passed on while it is being written
        elif not self._depth and (character in ",}" or character in _BLANKS):
            self._end_value()  # a number, true, false or null ends where something else begins
            return self._step(character, 0)
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._depth < 0:
                self._spoil()
                return 1
        self._value.append(character)
        if not self._depth and character in "}]":
            self._end_value()
        return 1

    def _end_value(self) -> None:
        key = _loaded(self._key)
        self._where = _Where.MEMBERS
        if self._value is self._arguments:
            self._value, self._has_arguments = [], True
            return
        raw = "".join(self._value)
        if key == "name" and self._name is None:
            name = _loaded(raw)
            if isinstance(name, str) and name:
                self._name = name
            else:
                self._spoil()
        elif key in ARGUMENT_KEYS and not self._has_arguments:
            held = _loaded(raw) if raw.startswith('"') else None
            self._arguments.append(held if isinstance(held, str) else "{}" if raw == "null" else raw)
            self._has_arguments = True

    def _pass_on(self) -> None:
        """Emit what is certain of the call in hand."""
        if self._name is None:
            return
        if not self._is_announced:
            self._is_announced = True
            self.num_announced += 1
            self._emit(ToolCallDelta(self._first_index + self.num_announced - 1, self._name, ""))
        if self._arguments:
            index = self._first_index + self.num_announced - 1
            self._emit(ToolCallDelta(index, None, "".join(self._arguments)))
            self._arguments.clear()

    def _end_call(self) -> None:
        if self._name is None:
            self._spoil()
            return
        if not self._has_arguments:
            self._arguments.append("{}")
        self._pass_on()
        self._name = None
        self._where = _Where.BETWEEN

    def _spoil(self) -> None:
        """What was read is no call. The block's first one makes it plain text; a later one is passed over."""
        if self.num_announced:
            self._name = None
            self._where = _Where.BETWEEN
        else:
            self.is_malformed = True


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
