"""Whole characters only, at any cut; stop strings; text, ids and logprobs agree."""

from __future__ import annotations

import pytest
from engine_helpers import EOS, TOKENIZER, VOCABULARY, byte_tokens
from hypothesis import given
from hypothesis import strategies as st

from slipstream.engine.detokenizer import Detokenizer
from slipstream.engine.output_processor import ChoiceProcessor
from slipstream.engine.stop_strings import StopStringFinder, length_that_may_begin_a_stop
from slipstream.request import FinishReason, Logprobs, RequestOutput, SamplingParams

HARD_TEXT = "naïve 日本語 👩‍👩‍👧 e\u0301 🇩🇪 ok"


def stream(token_ids: list[int], sizes: int) -> list[str]:
    processor = ChoiceProcessor(VOCABULARY, SamplingParams(), 0)
    chunks = [token_ids[start : start + sizes] for start in range(0, len(token_ids), sizes)]
    return [processor.process(RequestOutput("r#0", chunk)).text for chunk in chunks]


@pytest.mark.parametrize("size", range(1, 9))
def test_L6_characters_cut_at_every_token_offset(size: int) -> None:
    token_ids = byte_tokens(HARD_TEXT)
    for skip in range(size):
        processor = ChoiceProcessor(VOCABULARY, SamplingParams(), 0)
        pieces = [processor.process(RequestOutput("r#0", token_ids[:skip])).text]
        for start in range(skip, len(token_ids), size):
            pieces.append(processor.process(RequestOutput("r#0", token_ids[start : start + size])).text)
        assert "".join(pieces) == HARD_TEXT
        assert not any("\ufffd" in piece for piece in pieces)


def test_L6_unfinished_character_at_the_end_is_left_out() -> None:
    assert "".join(stream(byte_tokens("ok 👍")[:-1], 1)) == "ok "


@given(st.text())
def test_L6_text_survives_encoding_and_streaming(text: str) -> None:
    detokenizer = Detokenizer(VOCABULARY)
    assert "".join(map(detokenizer.push, TOKENIZER.encode(text))) == TOKENIZER.decode(TOKENIZER.encode(text))


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1)))
def test_L6_any_tokens_give_what_the_whole_gives(token_ids: list[int]) -> None:
    detokenizer = Detokenizer(VOCABULARY)
    streamed = "".join(map(detokenizer.push, token_ids))
    whole = TOKENIZER.decode(token_ids)
    # Only an unfinished character at the end may differ: the whole shows U+FFFD, the stream waits for the rest.
    assert whole == streamed or (whole.startswith(streamed) and set(whole[len(streamed) :]) == {"\ufffd"})


def test_special_tokens_are_no_text() -> None:
    assert "".join(stream([*byte_tokens("a"), EOS, *byte_tokens("b")], 1)) == "ab"


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("ab"), st.data())
def test_F3_finder_finds_the_stop_completed_first_at_any_cut(stops: list[str], text: str, data: st.DataObject) -> None:
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    finder = StopStringFinder(stops)
    start, found, read = 0, None, 0
    while start < len(text) and found is None:
        size = data.draw(st.integers(1, 3))
        found = finder.push(text[start : start + size])
        start += size
        read = min(start, len(text))
    assert found == (min(ends)[2] if ends else None)
    if found is not None:
        assert min(ends)[0] <= read < min(ends)[0] + 3


def test_finder_ignores_what_was_completed_while_not_armed() -> None:
    finder = StopStringFinder(["ab"])
    assert finder.push("ab", armed=False) is None
    assert finder.push("cb") is None
    assert finder.push("a", armed=False) is None
    assert finder.push("b") == "ab"


@given(st.text("ab"), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_held_back_length_is_the_longest_beginning(text: str, stops: list[str]) -> None:
    expected = max(
        (size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])),
        default=0,
    )
    assert length_that_may_begin_a_stop(text, stops) == expected


@given(st.text("ab", max_size=12), st.integers(1, 4), st.booleans())
def test_F11_streamed_text_never_shows_what_a_stop_takes_away(text: str, size: int, include: bool) -> None:
    stop = "abba"
    whole = text + stop
    cut = whole.index(stop) + (len(stop) if include else 0)
    end_token = whole.index(stop) + len(stop)
    token_ids = byte_tokens(whole)[:end_token]
    sampling = SamplingParams(stop=(stop,), include_stop_str_in_output=include)
    processor = ChoiceProcessor(VOCABULARY, sampling, 0)
    shown = ""
    for start in range(0, len(token_ids), size):
        is_last = start + size >= len(token_ids)
        output = RequestOutput("r#0", token_ids[start : start + size])
        if is_last:
            output.finish_reason, output.stop_reason = FinishReason.STOP, stop
        shown += processor.process(output).text
        assert whole[:cut].startswith(shown)
    assert shown == whole[:cut]


def test_held_back_text_comes_out_at_the_length_limit() -> None:
    processor = ChoiceProcessor(VOCABULARY, SamplingParams(stop=("abc",)), 0)
    assert processor.process(RequestOutput("r#0", byte_tokens("xab"))).text == "x"
    last = processor.process(RequestOutput("r#0", byte_tokens("a"), FinishReason.LENGTH))
    assert last.text == "aba"


def test_stop_token_with_text_is_left_out_unless_asked_for() -> None:
    for include, expected in ((False, "a"), (True, "ab")):
        sampling = SamplingParams(stop_token_ids=(ord("b"),), include_stop_str_in_output=include)
        processor = ChoiceProcessor(VOCABULARY, sampling, 0)
        output = RequestOutput("r#0", byte_tokens("ab"), FinishReason.STOP, ord("b"))
        assert processor.process(output).text == expected


def test_logprobs_carry_bytes_and_offsets() -> None:
    processor = ChoiceProcessor(VOCABULARY, SamplingParams(logprobs=1), 0)
    token_ids = byte_tokens("aé")
    entries = [Logprobs(-0.5, 1, ((token, -0.5),)) for token in token_ids]
    delta = processor.process(RequestOutput("r#0", token_ids, logprobs=entries))
    assert delta.logprobs is not None
    assert [entry.chosen.token for entry in delta.logprobs] == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert b"".join(entry.chosen.token_bytes for entry in delta.logprobs).decode() == delta.text == "aé"
    assert [entry.text_offset for entry in delta.logprobs] == [0, 1, 1]
