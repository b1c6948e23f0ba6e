"""Server-sent events out of a byte stream, however the network cuts it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\n|\r")


class EventDecoder:
    """Feed it reads; it gives the data of each event completed by them (WHATWG HTML, section 9.2).

    A read may hold several events, a part of one, or half of a character.
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._data: list[str] = []

    def feed(self, read: bytes) -> Iterator[str]:
        """Yield the `data` of every event that this read completes; comments and other fields are not data."""
        self._rest += self._text.decode(read)
        while (end := _LINE_END.search(self._rest)) is not None:
            if end.group() == "\r" and end.end() == len(self._rest):
                return  # a line feed may follow in the next read
            line, self._rest = self._rest[: end.start()], self._rest[end.end() :]
            if line:
                self._field(line)
            elif self._data:
                yield "\n".join(self._data)
                self._data = []

    def close(self) -> Iterator[str]:
        """The stream ended; an event without its empty line is still given, as its server meant it."""
        yield from self.feed(b"\n\n")

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
