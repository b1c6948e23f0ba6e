"""Detokenizer: tokens in, whole characters out."""

from __future__ import annotations

import codecs

from slipstream.engine.vocabulary import Vocabulary

_UTF8_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns one choice's tokens into text, one at a time, at a cost that does not grow with the text.

    A character whose bytes are spread over several tokens comes out with its last byte. Bytes that can never become a
    character come out as U+FFFD, as in a decoding of the whole; an unfinished character at the very end is left out.
    """

    __slots__ = ("_decoder", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = _UTF8_DECODER("replace")

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; may be empty."""
        return self._decoder.decode(self._vocabulary.text_bytes_of(token_id))
