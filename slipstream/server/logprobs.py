"""Log probabilities in the shapes of the OpenAI API, and vLLM's of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipstream.engine.output_processor import PositionLogprobs, TokenLogprob

# JSON has no minus infinity; clients know this number from OpenAI.
LOWEST = -9999.0


def chat_entries(positions: Sequence[PositionLogprobs], *, as_ids: bool = False) -> list[dict[str, Any]]:
    """`[{token, logprob, bytes, top_logprobs}, …]`."""
    return [
        {
            **_entry(position.chosen, as_ids),
            "top_logprobs": [_entry(token, as_ids) for token in position.top],
        }
        for position in positions
    ]


def chat_logprobs(positions: Sequence[PositionLogprobs] | None, *, as_ids: bool = False) -> dict[str, Any] | None:
    """`{"content": […]}`; `as_ids` writes tokens as `token_id:17`."""
    if positions is None:
        return None
    return {"content": chat_entries(positions, as_ids=as_ids), "refusal": None}


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None] | None,
    *,
    first_token: str = "",
    shift: int = 0,
    as_ids: bool = False,
) -> dict[str, Any] | None:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; the sampled token is among the top ones always.

    Args:
        first_token: what stands where nothing is known, before the first token of an echoed prompt.
        shift: characters before the text that the offsets count from.
    """
    if positions is None:
        return None
    return {
        "tokens": [first_token if position is None else _text(position.chosen, as_ids) for position in positions],
        "token_logprobs": [None if position is None else _value(position.chosen) for position in positions],
        "top_logprobs": [
            None
            if position is None
            else {_text(token, as_ids): _value(token) for token in (*position.top, position.chosen)}
            for position in positions
        ],
        "text_offset": [0 if position is None else position.text_offset + shift for position in positions],
    }


def joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Two of `completion_logprobs`, one after the other."""
    if first is None or second is None:
        return first or second
    return {name: first[name] + second[name] for name in first}


def prompt_logprobs(positions: Sequence[PositionLogprobs | None]) -> list[dict[str, Any] | None]:
    """vLLM's: per prompt token `{token id: {logprob, rank, decoded_token}}`, the first one null."""
    entries: list[dict[str, Any] | None] = []
    for position in positions:
        if position is None:
            entries.append(None)
            continue
        ranked = {
            str(token.token_id): {"logprob": _value(token), "rank": rank, "decoded_token": token.token}
            for rank, token in enumerate(position.top, start=1)
        }
        chosen = position.chosen
        ranked[str(chosen.token_id)] = {
            "logprob": _value(chosen),
            "rank": position.rank,
            "decoded_token": chosen.token,
        }
        entries.append(ranked)
    return entries


def _entry(token: TokenLogprob, as_ids: bool) -> dict[str, Any]:
    return {"token": _text(token, as_ids), "logprob": _value(token), "bytes": list(token.token_bytes)}


def _text(token: TokenLogprob, as_ids: bool) -> str:
    return f"token_id:{token.token_id}" if as_ids else token.token


def _value(token: TokenLogprob) -> float:
    return max(token.logprob, LOWEST)
