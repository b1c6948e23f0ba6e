"""Vocabulary: the bytes behind each token id, from which all text is made."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes per token id. Text is the UTF-8 decoding of the tokens' bytes in order, special tokens left out.

    Attributes:
        token_bytes: indexed by token id; empty for ids that stand for nothing.
        special_token_ids: tokens that control the model and are not text.
    """

    token_bytes: tuple[bytes, ...]
    special_token_ids: frozenset[int]

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Read the whole table once; EOS counts as special whatever the tokenizer says."""
        table = tuple(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
        return cls(table, tokenizer.special_ids | frozenset(tokenizer.eos_token_ids))

    def bytes_of(self, token_id: int) -> bytes:
        """Bytes of one token, special or not; empty for an id outside the vocabulary (padding rows of a model)."""
        return self.token_bytes[token_id] if 0 <= token_id < len(self.token_bytes) else b""

    def text_bytes_of(self, token_id: int) -> bytes:
        """Bytes the token adds to the text; empty for special tokens."""
        return b"" if token_id in self.special_token_ids else self.bytes_of(token_id)

    def display(self, token_id: int) -> str:
        """The token as a string; one that is no whole characters is written as OpenAI does, `bytes:\\xe2\\x80`."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
