"""Which tokens a row may see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Of the rows that a request has in a pass: positions `first ... end - 1`, all tokens before them are context.

    Attributes:
        is_causal: a row sees the pass's rows up to itself; False: all rows of its request, also later ones.
        window: context tokens that every row sees at most, counted back from the request's first row. Counted from
            there, not from each row, because drafters are trained so (drafters see one block at a time). None: all.
    """

    is_causal: bool = True
    window: int | None = None

    def first_key(self, first_position: int) -> int:
        """Position of the earliest token seen."""
        return 0 if self.window is None else max(first_position - self.window, 0)


CAUSAL = AttentionPattern()
