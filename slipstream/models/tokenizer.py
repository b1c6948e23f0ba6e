"""Text to token ids and back: what the engine needs of a `tokenizers.Tokenizer`."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from slipstream.request import RequestError


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of GPT-2's byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 onward."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class Tokenizer:
    """A model's tokenizer.

    Attributes:
        eos_token_ids: tokens that end a text. bos_token_id: the one that begins it, or None.
        special_ids: tokens that `decode` leaves out unless told otherwise.
        vocab_size: one more than the largest id. The model's own vocabulary may be larger (padding).
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, eos_token_ids: Sequence[int] = (), bos_token_id: int | None = None
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.eos_token_ids = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self._added_text = {token_id: token.content for token_id, token in added.items()}
        # A decoder that turns Ġ into a blank speaks GPT-2's byte alphabet; the other family uses ▁ and <0x0A>.
        self._is_byte_level = backend.decoder is not None and backend.decoder.decode(["Ġ"]) == " "
        self._alphabet = byte_level_alphabet()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in it are taken as such.

        Args:
            add_special_tokens: put BOS in front where the model wants one; off for a rendered chat template, which
                writes its own.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start}; "
                "send valid Unicode"
            ) from None
        # The batch call lets other threads run meanwhile; the single one does not.
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that form no character come out as U+FFFD. Ids without a token give nothing."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token (`Ġthe`), or None."""
        token: str | None = self.backend.id_to_token(token_id)
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text, special ones included; of an id without a token, none."""
        added = self._added_text.get(token_id)
        if added is not None:
            return added.encode("utf-8")
        token = self.id_to_token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            if all(character in self._alphabet for character in token):
                return bytes(self._alphabet[character] for character in token)
            return token.encode("utf-8")
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("▁", " ").encode("utf-8")

    def token_text(self, token_id: int) -> str:
        """A token as text on its own, as log probability reports show it; a part of a character gives U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")
