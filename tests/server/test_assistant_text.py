"""What a model writes, split into reasoning, answer and tool calls, whatever pieces it comes in."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.models.chat_format import ChatFormat
from slipstream.server.assistant_text import AssistantReader, Reasoning, TextDelta

WEATHER = '{"name": "weather", "arguments": {"city": "Köln", "note": "a } and a \\" and </tool_call>"}}'
TIME = '{"name": "time", "arguments": {}}'
TWO_CALLS = f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{TIME}\n</tool_call>"
WEATHER_ARGUMENTS = '{"city": "Köln", "note": "a } and a \\" and </tool_call>"}'

Split = tuple[str, str, list[tuple[str, str]]]


def split(pieces: list[str], reasoning: Reasoning = Reasoning.POSSIBLE, **options: Any) -> Split:
    """Reasoning, answer, and (name, arguments) of each call."""
    reader = AssistantReader(reasoning, reads_tools=True, **options)
    deltas = [delta for piece in pieces for delta in reader.read(piece)]
    deltas += reader.read("", is_last=True)
    texts = {True: "", False: ""}
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            assert delta.text, "an empty piece says nothing"
            texts[delta.is_reasoning] += delta.text
        elif delta.name is not None:
            assert delta.index == len(calls)
            calls.append((delta.name, delta.arguments))
        else:
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert reader.num_calls == len(calls)
    return texts[True], texts[False], calls


def cuts(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def check(text: str, expected: Split, **options: Any) -> None:
    for size in range(1, len(text) + 1):
        assert split(cuts(text, size), **options) == expected, f"in pieces of {size}"


def test_S9_S11_two_calls_cut_at_every_offset() -> None:
    expected = ("", "", [("weather", WEATHER_ARGUMENTS), ("time", "{}")])
    for first in range(len(TWO_CALLS)):
        for size in (1, 2, 5, 16):
            assert split([TWO_CALLS[:first], *cuts(TWO_CALLS[first:], size)]) == expected


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["</think>Sure.<tool_call>", TIME, "</tool_call>"], ("", "Sure.", [("time", "{}")])),
        (["<tool_call>", TIME, "</tool_call>\n"], ("", "", [("time", "{}")])),
        (["<tool_call>", TIME, "</tool_call> Done."], ("", " Done.", [("time", "{}")])),
        ([f"<tool_call>{TIME}</tool_call>"], ("", "", [("time", "{}")])),
        ([TWO_CALLS], ("", "", [("weather", WEATHER_ARGUMENTS), ("time", "{}")])),
        (["<tool_call>", TIME, "</tool_call><tool_call>", TIME, "</tool_call>"], ("", "", [("time", "{}")] * 2)),
        (["Before ", "<tool_", f"call>{TIME}</tool_call>"], ("", "Before", [("time", "{}")])),
    ],
    ids=[
        "reasoning end + text + start",
        "end + newline",
        "end + text",
        "whole",
        "several",
        "end + start",
        "cut marker",
    ],
)
def test_S10_the_seven_shapes_of_chunks(pieces: list[str], expected: Split) -> None:
    is_open = pieces[0].startswith("</think>")
    assert split(pieces, Reasoning.OPEN if is_open else Reasoning.NONE) == expected


def test_S7_tool_syntax_inside_the_reasoning_is_reasoning() -> None:
    text = f"<think>I could <tool_call>{TIME}</tool_call> or not</think>No."
    check(text, (f"I could <tool_call>{TIME}</tool_call> or not", "No.", []))


@pytest.mark.parametrize(
    ("text", "reasoning", "expected"),
    [
        ("<think>\none\n</think>\n\ntwo\n", Reasoning.POSSIBLE, ("\none\n", "\n\ntwo\n", [])),
        ("one</think>two", Reasoning.OPEN, ("one", "two", [])),
        ("one < two </thin", Reasoning.OPEN, ("one < two </thin", "", [])),
        ("  <think>one", Reasoning.POSSIBLE, ("one", "", [])),
        ("<thin air", Reasoning.POSSIBLE, ("", "<thin air", [])),
        ("no <think>, no</think>", Reasoning.POSSIBLE, ("", "no <think>, no</think>", [])),
        ("<think>one</think>", Reasoning.NONE, ("", "<think>one</think>", [])),
    ],
)
def test_L8_reasoning_and_answer_hold_the_whole_text(text: str, reasoning: Reasoning, expected: Split) -> None:
    check(text, expected, reasoning=reasoning)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<tool_call>[{TIME}, {TIME}]</tool_call>", ("", "", [("time", "{}"), ("time", "{}")])),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ("", "", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "parameters": "{\\"a\\": 1}"}</tool_call>', ("", "", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f"}</tool_call>', ("", "", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": null, "id": 7}</tool_call>', ("", "", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call> ok', ("", " ok", [("f", '{"a": 1}')])),
        ('<tool_call>{"name": "f", "arguments": {"a": ', ("", "", [("f", '{"a": ')])),
        ("<tool_call>no call</tool_call> x", ("", "<tool_call>no call</tool_call> x", [])),
        (" \n<tool_call>no</tool_call>", ("", " \n<tool_call>no</tool_call>", [])),
        ('<tool_call>{"name": 3}</tool_call>', ("", '<tool_call>{"name": 3}</tool_call>', [])),
        ("<tool_call></tool_call>", ("", "<tool_call></tool_call>", [])),
        ('<tool_call>{"na', ("", '<tool_call>{"na', [])),
        ("a <tool", ("", "a <tool", [])),
        (" blanks \n\n", ("", " blanks \n\n", [])),
        ("", ("", "", [])),
    ],
)
def test_slips_of_small_models(text: str, expected: Split) -> None:
    check(text, expected)


def test_calls_beyond_the_first_are_dropped_where_only_one_is_wanted() -> None:
    check(TWO_CALLS, ("", "", [("weather", WEATHER_ARGUMENTS)]), max_calls=1)


def test_arguments_are_passed_on_while_they_are_written() -> None:
    reader = AssistantReader(Reasoning.NONE, reads_tools=True)
    pieces = [reader.read(piece) for piece in ('<tool_call>{"name": "f", ', '"arguments": {"a": ', '"b', 'c"', "}")]
    assert [[getattr(delta, "arguments", None) for delta in deltas] for deltas in pieces] == [
        [""],
        ['{"a": '],
        ['"b'],
        ['c"'],
        ["}"],
    ]


def test_without_tools_everything_is_text() -> None:
    reader = AssistantReader(Reasoning.NONE, reads_tools=False)
    assert reader.read(TWO_CALLS, is_last=True) == [TextDelta(TWO_CALLS)]


def test_what_a_template_shows_of_its_model() -> None:
    hermes = ChatFormat.of("{% if tools %}<tool_call>{% endif %}{% if enable_thinking %}<think></think>{% endif %}")
    assert hermes == ChatFormat(True, True, True, True, False)
    assert not ChatFormat.of("{{ tools }}<tool_call><function=name>").writes_json_calls
    assert ChatFormat.of("{{ messages }}") == ChatFormat(False, False, False, False, False)
