"""Types of body fields whose checks stop at the first fault, so that a body of wrong values is refused as fast as any.

Pydantic otherwise collects an error for every item of a list, in every branch of a union, and for every unknown key.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from slipstream.request import MAX_BAD_WORDS, MAX_STOP_STRINGS

MAX_PROMPTS = 256
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
MAX_STOP_CHARACTERS = 4096
MAX_STOP_TOKEN_IDS = 4096
MAX_BAD_WORD_CHARACTERS = 128
MAX_LOGIT_BIASES = 1 << 16
# One level of priority is worth `priority_ageing_s` of waiting (30 s unless set otherwise); a wider range would let one
# client keep all others waiting for good.
MAX_PRIORITY = 100
MAX_ECHO = 100


def shortened(text: str, limit: int = MAX_ECHO) -> str:
    """A client's text as far as an error message repeats it."""
    return text if len(text) <= limit else text[:limit] + "…"


def _between(low: int, high: int) -> AfterValidator:
    """Bounds of an integer whose refusal names both of them."""

    def check(value: int) -> int:
        if not low <= value <= high:
            nearest = low if value < low else high
            raise PydanticCustomError("out_of_range", f"must be between {low} and {high}; the nearest is {nearest}")
        return value

    return AfterValidator(check)


Int32 = Annotated[int, _between(-(2**31), 2**31 - 1)]
Int64 = Annotated[int, _between(-(2**63), 2**63 - 1)]
Seed = Annotated[int, _between(-(2**128), 2**128)]
Priority = Annotated[int, _between(-MAX_PRIORITY, MAX_PRIORITY)]

# Checked millions at a time, so by pydantic's own bounds.
TokenId = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
StopTokenIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)]

Prompt = (
    str
    | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    | TokenIds
    | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS, fail_fast=True)]
)

_StopString = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]
Stop = _StopString | Annotated[list[_StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)]


# Encoding them is work that nobody else is served during.
BadWords = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARACTERS)]],
    Field(max_length=MAX_BAD_WORDS // 4, fail_fast=True),
]


def _check_logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PydanticCustomError("logit_bias", "must be an object that maps token ids to numbers")
    if len(value) > MAX_LOGIT_BIASES:
        raise PydanticCustomError("logit_bias", f"takes at most {MAX_LOGIT_BIASES} tokens, got {len(value)}")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not re.fullmatch(r"[0-9]{1,10}", key):
            raise _bad_bias(f"must map token ids to numbers, got the key {shortened(key)!r}")
        if type(bias) not in (int, float) or not -100 <= bias <= 100:  # also refuses NaN
            raise _bad_bias(f"of token {key} must be a number between -100 and 100")
        biases[int(key)] = float(bias)
    return biases


def _bad_bias(message: str) -> PydanticCustomError:
    return PydanticCustomError("logit_bias", "{message}", {"message": message})


LogitBias = Annotated[dict[int, float] | None, PlainValidator(_check_logit_bias)]
