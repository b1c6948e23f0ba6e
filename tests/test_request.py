"""SamplingParams refuse values of the wrong type or range, and say which field it was."""

from __future__ import annotations

import math
from typing import Any

import pytest

from slipstream.request import MAX_WHOLE_NUMBER, RequestError, SamplingParams

WHOLE = ("n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs")
NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
SWITCHES = ("include_stop_str_in_output", "ignore_eos")
LISTS = ("stop", "stop_token_ids")

WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in WHOLE for value in (2.5, 2.0, True, "2", [2])),
    *((name, value) for name in ("n", "top_k", "min_tokens") for value in (None,)),
    *((name, value) for name in NUMBERS for value in (True, "1", None, [1.0], math.nan, math.inf, -math.inf, 10**400)),
    *((name, value) for name in SWITCHES for value in (1, None, "true")),
    *((name, value) for name in LISTS for value in (5, None, b"ab", {"a": 1}, (None,), (1.5,), (True,))),
    ("stop", (1,)),
    ("stop", "a\ud800"),
    ("stop", ""),
    ("stop_token_ids", "12"),
    ("stop_token_ids", ("1",)),
    *((name, 2**63) for name in ("max_tokens", "min_tokens", "top_k")),
    ("max_tokens", 10**5000),
    ("max_tokens", [10**5000]),
    ("repetition_penalty", 1e-40),
    ("repetition_penalty", 1e30),
    ("prompt_logprobs", -1),
    ("prompt_logprobs", 21),
    ("allowed_token_ids", ()),
    ("allowed_token_ids", ("a",)),
    ("bad_words_token_ids", ((),)),
    ("bad_words_token_ids", ("a",)),
    ("bad_words_token_ids", ((1,),) * 1025),
    ("thinking", 10),
    ("constraint", "{}"),
    *(
        ("logit_bias", value)
        for value in ([1], None, {"1": 1}, {1.0: 1}, {True: 1}, {1: "1"}, {1: True}, {1: math.nan})
    ),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda value: str(type(value).__name__))
def test_wrong_values_are_refused_by_field(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name and name in caught.value.message
    assert len(caught.value.message) < 300


def test_every_field_is_checked() -> None:
    assert {name for name, _ in WRONG} == set(SamplingParams.__dataclass_fields__)


def test_penalties_that_could_overflow_name_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"the nearest is 0\.01"):
        SamplingParams(repetition_penalty=1e-40)
    with pytest.raises(RequestError, match=r"the nearest is 100"):
        SamplingParams(repetition_penalty=1e30)


def test_one_stop_string_is_one_stop_string_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="Paris").stop == ("Paris",)
    made = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert (made.stop, made.stop_token_ids) == (("a", "b"), (1, 2))
    assert hash(made.stop)


def test_the_ends_of_every_range_work() -> None:
    for values in (
        {"max_tokens": MAX_WHOLE_NUMBER, "min_tokens": MAX_WHOLE_NUMBER, "top_k": MAX_WHOLE_NUMBER},
        {
            "max_tokens": None,
            "seed": -(2**200),
            "top_k": -1,
            "logprobs": 0,
            "temperature": 0,
            "repetition_penalty": 0.01,
        },
        {"n": 128, "temperature": 100, "top_p": 1, "min_p": 1, "repetition_penalty": 100, "logit_bias": {5: -100}},
    ):
        SamplingParams(**values)  # type: ignore[arg-type]
