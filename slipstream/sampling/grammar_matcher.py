"""GrammarMatcher: where one request stands in its grammar, as a function of its output alone."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLMatcher

from slipstream.request import ReasoningMarkers
from slipstream.scheduler.protocol import ConstraintError


class GrammarMatcher:
    """A TokenMatcher.

    It remembers the tokens that llguidance has read, goes back to where another output parts from them, and on from
    there; so verify rows, refused drafts and recomputed requests cost what they add, and nothing can be stale.
    """

    def __init__(
        self,
        prototype: LLMatcher,
        ends: frozenset[int],
        vocab_size: int,
        reasoning: ReasoningMarkers | None = None,
    ) -> None:
        """`prototype` stays at its beginning and is only copied; `ends` are EOS and stop ids; `reasoning` may stand
        before the document, and is free but for the ends."""
        self._prototype = prototype
        self._ends = ends
        self._vocab_size = vocab_size
        self._reasoning = reasoning
        self._machine = prototype.deep_copy()
        self._read: list[int] = []

    def allowed(self, output: Sequence[int]) -> bytes | None:
        """See TokenMatcher."""
        start, opening = self._place(output)
        if start is None:
            return self._bits(bytes([0xFF]) * self._num_bytes, are_ends_allowed=False)
        document = list(output[start:])
        if not self._ends.isdisjoint(document):
            return self._bits(bytes(self._num_bytes), are_ends_allowed=True)
        if not self._follow(document):
            return None if opening is None else self._bits(bytes(self._num_bytes), are_ends_allowed=False, more=opening)
        mask = self._machine.compute_bitmask()
        if self._machine.is_error():
            reason = self._machine.get_error()
            self._begin_again()
            raise ConstraintError(f"the constraint cannot be followed any further: {reason}")
        return self._bits(mask, are_ends_allowed=self._machine.is_accepting(), more=opening)

    def num_legal(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """See TokenMatcher."""
        prefix = list(output)
        for count, draft in enumerate(drafts):
            if not self._permits(prefix, draft):
                return count
            if draft in self._ends:
                return count + 1
            prefix.append(draft)
        return len(drafts)

    def _permits(self, output: Sequence[int], token_id: int) -> bool:
        start, opening = self._place(output)
        if token_id == opening:
            return True
        is_end = token_id in self._ends
        if start is None:
            return not is_end
        document = list(output[start:])
        if not self._ends.isdisjoint(document):
            return is_end
        if not self._follow(document):
            return False
        if is_end:
            return bool(self._machine.is_accepting())
        return bool(self._machine.validate_tokens([token_id]) == 1)

    def _place(self, output: Sequence[int]) -> tuple[int | None, int | None]:
        """Where the document begins, None inside of the reasoning; and the token that (further) opens the reasoning."""
        if self._reasoning is None:
            return 0, None
        return self._reasoning.document_start(output), self._reasoning.next_of_start(output)

    def _follow(self, document: list[int]) -> bool:
        """Put the machine behind `document`; False where the grammar does not go so far."""
        read = self._read
        if document[: len(read)] != read:
            common = 0
            while common < len(document) and document[common] == read[common]:
                common += 1
            if self._machine.rollback(len(read) - common):
                del read[common:]
            else:
                self._begin_again()
                read = self._read
        rest = document[len(read) :]
        taken = self._machine.try_consume_tokens(rest) if rest else 0
        read += rest[:taken]
        return taken == len(rest)

    def _begin_again(self) -> None:
        self._machine, self._read = self._prototype.deep_copy(), []

    @property
    def _num_bytes(self) -> int:
        return -(-self._vocab_size // 8)

    def _bits(self, mask: bytes, *, are_ends_allowed: bool, more: int | None = None) -> bytes:
        """The mask with the ends set or not, and one token more."""
        bits = bytearray(mask[: self._num_bytes].ljust(self._num_bytes, b"\0"))
        for token_id in self._ends:
            if 0 <= token_id < self._vocab_size:
                if are_ends_allowed:
                    bits[token_id >> 3] |= 1 << (token_id & 7)
                else:
                    bits[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF
        if more is not None:
            bits[more >> 3] |= 1 << (more & 7)
        return bytes(bits)
