"""OutputItems: an answer as the items of `/v1/responses`, or the blocks of `/v1/messages`: one after the other, each of
one kind, put together from deltas in the order in which the model wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from slipstream.server.answers import new_id
from slipstream.server.assistant_text import AssistantDelta, TextDelta


class ItemKind(StrEnum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class OutputItem:
    """One of them.

    Attributes:
        index: its place in the answer. text: reasoning, answer, or the arguments of a call as JSON text.
        name: of the function that is called.
        item_id, call_id: drawn here.
    """

    index: int
    kind: ItemKind
    item_id: str
    text: str = ""
    name: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class ItemChange:
    """An item opened, grew, or is complete."""

    item: OutputItem
    opens: bool = False
    added: str = ""
    closes: bool = False


class OutputItems:
    """Attributes: items so far; all but the last are complete."""

    def __init__(self, prefixes: dict[ItemKind, str]) -> None:
        """`prefixes`: what ids of each kind begin with."""
        self.items: list[OutputItem] = []
        self._prefixes = prefixes
        self._is_open = False

    def add(self, deltas: list[AssistantDelta]) -> Iterator[ItemChange]:
        """What deltas change, in order."""
        for delta in deltas:
            if isinstance(delta, TextDelta):
                kind = ItemKind.REASONING if delta.is_reasoning else ItemKind.TEXT
                if not self._is_open or self.items[-1].kind is not kind:
                    yield from self._open(kind)
                text = delta.text
            else:
                if delta.name is not None:
                    yield from self._open(ItemKind.CALL, delta.name)
                text = delta.arguments
            item = self.items[-1]
            item.text += text
            if text:
                yield ItemChange(item, added=text)

    def open_empty(self) -> Iterator[ItemChange]:
        """An answer without a word still has a text."""
        return self._open(ItemKind.TEXT)

    def close(self) -> Iterator[ItemChange]:
        """The answer ended."""
        if self._is_open:
            self._is_open = False
            yield ItemChange(self.items[-1], closes=True)

    def _open(self, kind: ItemKind, name: str = "") -> Iterator[ItemChange]:
        yield from self.close()
        item = OutputItem(len(self.items), kind, new_id(self._prefixes[kind], "_"), name=name)
        if kind is ItemKind.CALL:
            item.call_id = new_id("call", "_")
        self.items.append(item)
        self._is_open = True
        yield ItemChange(item, opens=True)
