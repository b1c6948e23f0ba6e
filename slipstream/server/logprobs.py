"""Log probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.engine.output_processor import PositionLogprobs, TokenLogprob

# JSON has no minus infinity; clients know this number from OpenAI.
LOWEST = -9999.0


def chat_logprobs(positions: Sequence[PositionLogprobs] | None) -> dict[str, Any] | None:
    """`{"content": [{token, logprob, bytes, top_logprobs}, …]}`."""
    if positions is None:
        return None
    return {
        "content": [
            {**_entry(position.chosen), "top_logprobs": [_entry(token) for token in position.top]}
            for position in positions
        ],
        "refusal": None,
    }


def completion_logprobs(positions: Sequence[PositionLogprobs] | None) -> dict[str, Any] | None:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; the sampled token is among the top ones always."""
    if positions is None:
        return None
    return {
        "tokens": [position.chosen.token for position in positions],
        "token_logprobs": [_value(position.chosen) for position in positions],
        "top_logprobs": [
            {token.token: _value(token) for token in (*position.top, position.chosen)} for position in positions
        ],
        "text_offset": [position.text_offset for position in positions],
    }


def _entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _value(token), "bytes": list(token.token_bytes)}


def _value(token: TokenLogprob) -> float:
    return max(token.logprob, LOWEST)
