"""GrammarCompiler and GrammarMatcher: what may follow, as a function of the output alone."""

from __future__ import annotations

import json
import random
import threading

import pytest
from structured import EOS, SCHEMAS, TOKEN_BYTES, VOCAB_SIZE, json_of, make_grammars, text_of, tokens_of

from slipstream.request import ConstraintKind, OutputConstraint, ReasoningMarkers, RequestError
from slipstream.sampling.grammar import MAX_CHARACTERS, NUM_KEPT, GrammarCompiler
from slipstream.sampling.grammar_matcher import GrammarMatcher

GRAMMARS = make_grammars()
NO_STOPS = frozenset[int]()


def matcher(kind: str, text: str, stops: frozenset[int] = NO_STOPS) -> GrammarMatcher:
    return GRAMMARS.matcher(OutputConstraint(ConstraintKind(kind), text), stops)


def allowed(asked: GrammarMatcher, output: list[int]) -> set[int]:
    bits = asked.allowed(output)
    assert bits is not None
    return {token_id for token_id in range(VOCAB_SIZE) if bits[token_id // 8] >> (token_id % 8) & 1}


def walk(asked: GrammarMatcher, dice: random.Random, length: int) -> list[int]:
    """An output of tokens that were allowed, up to EOS or `length`."""
    output: list[int] = []
    while len(output) < length and EOS not in output:
        output.append(dice.choice(sorted(allowed(asked, output))))
    return output


def test_tokens_that_cross_the_borders_of_the_grammar_are_allowed() -> None:
    asked = matcher("json_schema", json.dumps(SCHEMAS[1]))
    assert {TOKEN_BYTES[token_id] for token_id in allowed(asked, [])} == {b"{", b'{"'}
    assert EOS not in allowed(asked, tokens_of('{"a":1'))
    assert TOKEN_BYTES.index(b'"') not in allowed(asked, tokens_of('{"a":1'))


def test_an_end_stands_only_where_the_document_is_complete_and_nothing_follows_it() -> None:
    asked = matcher("json_schema", json.dumps(SCHEMAS[2]))
    whole = tokens_of('{"a":1}')
    for length in range(len(whole)):
        assert EOS not in allowed(asked, whole[:length])
    assert allowed(asked, whole) == {EOS} == allowed(asked, [*whole, EOS]) == allowed(asked, [*whole, EOS, EOS])


def test_stop_ids_are_ends_and_no_text() -> None:
    stop = tokens_of("b")[0]
    asked = matcher("regex", "[ab]{2,3}", frozenset({stop}))
    a = tokens_of("a")[0]
    assert allowed(asked, []) == {a} == allowed(asked, [a])
    assert allowed(asked, [a, a]) == {a, stop, EOS} and allowed(asked, [a, a, stop]) == {stop, EOS}


def test_special_tokens_and_ids_without_text_are_never_text() -> None:
    found = allowed(matcher("regex", "(?s:.*)"), [])
    assert EOS in found and TOKEN_BYTES.index(b"") not in found and VOCAB_SIZE - 1 not in found
    assert TOKEN_BYTES.index(b"\n") in found


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_S5_going_back_gives_the_masks_of_a_fresh_start(schema: object) -> None:
    """The engine can roll back; one matcher asked in any order says what new ones say."""
    dice = random.Random(json.dumps(schema))
    shared = GRAMMARS.matcher(json_of(schema), NO_STOPS)
    outputs = [walk(GRAMMARS.matcher(json_of(schema), NO_STOPS), dice, 12) for _ in range(3)]
    places = [(output, dice.randrange(len(output) + 1)) for output in outputs * 4]
    for output, length in places:
        fresh = GRAMMARS.matcher(json_of(schema), NO_STOPS)
        assert shared.allowed(output[:length]) == fresh.allowed(output[:length]), text_of(output[:length])


def test_drafts_are_legal_up_to_the_first_that_no_document_has_there() -> None:
    asked = matcher("json_schema", json.dumps(SCHEMAS[2]))
    begin, rest = tokens_of('{"a"'), tokens_of(":1}")
    assert asked.num_legal(begin, [*rest, EOS, EOS, *rest]) == 4
    assert asked.num_legal(begin, [rest[0], EOS]) == 1
    assert asked.num_legal(begin, [EOS]) == 0
    assert asked.num_legal(begin, [rest[0], VOCAB_SIZE - 1]) == 1
    assert asked.num_legal([*begin, *rest], [EOS, EOS]) == 1
    assert asked.num_legal(begin, []) == 0
    assert asked.allowed(tokens_of('{"b')) is None


@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_before_the_document_is_free_but_for_the_ends(is_open: bool) -> None:
    start, end = tokens_of("<<"), tokens_of(">>")
    markers = ReasoningMarkers(tuple(start), tuple(end), is_open)
    asked = GRAMMARS.matcher(OutputConstraint(ConstraintKind.REGEX, "ab", reasoning=markers), NO_STOPS)
    a, b = tokens_of("ab")
    thought = [*([] if is_open else start), *tokens_of("any { thing")]
    if not is_open:
        assert allowed(asked, []) == {start[0], a} and allowed(asked, start[:1]) == {start[1]}
        assert allowed(asked, [a]) == {b}
    assert allowed(asked, thought) == set(range(VOCAB_SIZE)) - {EOS}
    assert allowed(asked, [*thought, *end]) == {a} and allowed(asked, [*thought, *end, a, b]) == {EOS}
    assert asked.num_legal([], [*thought, *end, a, b, EOS, a]) == len(thought) + 5
    assert asked.num_legal(thought, [EOS]) == 0


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"type": "foo"}', "foo"),
        ("json_schema", '{"type": "object", "dependentSchemas": {"a": {}}}', "dependentSchemas"),
        ("json_schema", '{"$ref": "http://example.com/schema"}', "example.com"),
        ("json_schema", "false", "false"),
        ("json_schema", "[1", "JSON schema"),
        ("json_schema", "[1]", "JSON schema"),
        ("json_schema", '{"properties": ' * 2000 + "1" + "}" * 2000, "ecursion"),
        ("regex", "(a", "unclosed"),
        ("grammar", "root ::= (", "Expected"),
        ("grammar", "start: nowhere", "nowhere"),
        ("grammar", "root ::= " + "(" * 20000, "recursion"),
        ("regex", "a" * (MAX_CHARACTERS + 1), str(MAX_CHARACTERS)),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name_and_reason(kind: str, text: str, reason: str) -> None:
    constraint = OutputConstraint(ConstraintKind(kind), text, "response_format")
    for _ in range(2):  # a fault is not remembered as a grammar
        with pytest.raises(RequestError, match=reason) as caught:
            GRAMMARS.check(constraint)
        assert caught.value.parameter == "response_format" and caught.value.message.startswith("response_format")
        assert len(caught.value.message) < 600


def test_a_model_without_eos_cannot_be_held_to_a_form() -> None:
    endless = GrammarCompiler(
        [b"a"], special_token_ids=frozenset(), eos_token_ids=(), vocab_size=1, encode=lambda text: [0]
    )
    with pytest.raises(RequestError, match="EOS"):
        endless.check(OutputConstraint(ConstraintKind.REGEX, "a"))


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        ("grammar", 'root ::= "a" | "b" root', "bba", "c"),
        ("grammar", 'start: "a" | "b" start', "bba", "c"),
        ("choice", '["yes", "no \\"x\\"", "a|b", "[a]"]', 'no "x"', "maybe"),
        ("choice", '["yes", "a|b", "[a]"]', "a|b", "a"),
        ("regex", "[0-9]{3}", "123", "12"),
    ],
)
def test_the_other_ways_to_write_a_constraint(kind: str, text: str, good: str, bad: str) -> None:
    asked = matcher(kind, text)
    assert asked.num_legal([], [*tokens_of(good), EOS]) == len(good) + 1
    assert asked.num_legal([], [*tokens_of(bad), EOS]) <= len(bad)


def test_white_space_between_tokens_has_an_end() -> None:
    asked = matcher("json_schema", json.dumps(SCHEMAS[2]))
    blank = TOKEN_BYTES.index(b" ")
    assert blank in allowed(asked, [*tokens_of("{"), *[blank] * 15])
    assert blank not in allowed(asked, [*tokens_of("{"), *[blank] * 16])


def test_options_of_the_engine_inside_of_a_schema_are_not_heeded() -> None:
    """`lenient` would let what it cannot check be anything."""
    schema = {"type": "object", "dependentSchemas": {"a": {}}, "x-guidance": {"lenient": True}}
    with pytest.raises(RequestError, match="dependentSchemas"):
        GRAMMARS.check(json_of(schema))


def test_only_the_newest_grammars_are_kept_and_threads_may_share_them() -> None:
    own = make_grammars()
    faults: list[BaseException] = []

    def compile_many(first: int) -> None:
        try:
            for number in range(first, first + NUM_KEPT):
                asked = own.matcher(OutputConstraint(ConstraintKind.REGEX, f"x{number}"), NO_STOPS)
                assert asked.num_legal([], [*tokens_of(f"x{number}"), EOS]) == len(f"x{number}") + 1
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=compile_many, args=(first,)) for first in (0, 50, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults and len(own._compiled) == NUM_KEPT
