"""TokenReport: what a stream says of each token and draft, where that was asked for."""

from __future__ import annotations

from typing import Any

from slipstream.engine.output_processor import ChoiceDelta
from slipstream.server.answers import token_sources
from slipstream.server.served_model import TextEncoder
from slipstream.server.wire.openai import StreamOptions


class TokenReport:
    """Sources and texts of the tokens of a chunk, and the drafts that were refused in its step."""

    def __init__(self, options: StreamOptions | None, tokenizer: TextEncoder) -> None:
        options = options or StreamOptions()
        self._sources = bool(options.include_token_sources)
        self._texts = bool(options.include_token_texts)
        self._refused = bool(options.include_refused_drafts)
        self._tokenizer = tokenizer

    @property
    def is_wanted(self) -> bool:
        """Whether every chunk is to be sent, also one that shows no text yet."""
        return self._sources or self._texts or self._refused

    def of(self, delta: ChoiceDelta) -> dict[str, Any]:
        """The fields of a chunk's choice."""
        fields: dict[str, Any] = {}
        if self._sources:
            fields["token_sources"] = token_sources(delta)
        if self._texts:
            fields["token_texts"] = list(delta.token_texts)
        if self._refused:
            decode = self._tokenizer.decode
            fields["refused_drafts"] = [
                {"id": token_id, "text": decode([token_id], skip_special_tokens=False)}
                for token_id in delta.refused_draft_ids
            ]
        return fields
