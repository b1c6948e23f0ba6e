"""Where turns begin and end in a model's chat format, found out from its template."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.models.loading import ModelSource
from slipstream.request import RequestError

_MARK = "\u2603mark\u2603"
_OTHER = "\u2602mark\u2602"


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """Text around turns. A model without a template gets its prompts as they are, and no second turns.

    Attributes:
        before_user: from the beginning of a conversation to the user's first words.
        before_answer: from the end of the user's words to the answer.
        before_next_user: from the end of an answer to the user's next words.
    """

    before_user: str = ""
    before_answer: str = ""
    before_next_user: str | None = None

    @classmethod
    def of(cls, source: ModelSource) -> ChatTurns:
        """Of a model."""
        template = source.chat_template
        if template is None:
            return cls()
        first = template.render([{"role": "user", "content": _MARK}])
        before_user, _, before_answer = first.partition(_MARK)
        turns = [{"role": "user", "content": _MARK}, {"role": "assistant", "content": _OTHER}]
        try:
            second = template.render([*turns, {"role": "user", "content": _MARK}])
        except RequestError:
            return cls(before_user, before_answer)
        _, _, rest = second.partition(_OTHER)
        before_next_user, found, _ = rest.partition(_MARK)
        return cls(before_user, before_answer, before_next_user if found else None)
