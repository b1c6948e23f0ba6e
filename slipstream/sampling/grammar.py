"""GrammarCompiler: constraints compiled by llguidance, over the tokens of one model."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from slipstream.request import ConstraintKind, OutputConstraint, RequestError
from slipstream.sampling.grammar_matcher import GrammarMatcher

MAX_CHARACTERS = 1 << 18
MAX_ERROR = 400
NUM_KEPT = 128
# As much white space as people write; a small model left to itself may go on with blanks for ever.
WHITE_SPACE = r"[ \t\n\r]{1,16}"


class GrammarCompiler:
    """Compiles constraints, and keeps the newest; gives requests matchers of their own. Any thread may use it.

    The tokens' table is built with the first constraint (a fraction of a second for a large vocabulary).
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        special_token_ids: frozenset[int],
        eos_token_ids: Sequence[int],
        vocab_size: int,
        encode: Callable[[str], list[int]],
    ) -> None:
        """`token_bytes`: by token id, empty where an id stands for nothing. `vocab_size`: logits of a row."""
        padding = [b""] * (vocab_size - len(token_bytes))
        self._tokens = [*token_bytes[:vocab_size], *padding]
        self._special = frozenset(token_id for token_id in special_token_ids if token_id < vocab_size)
        self._ends = frozenset(token_id for token_id in eos_token_ids if token_id < vocab_size)
        self._encode = encode
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[OutputConstraint, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._building = threading.Lock()

    def check(self, constraint: OutputConstraint) -> None:
        """Compile it, if it is not known yet; up to seconds for a complex one.

        Raises:
            RequestError: it cannot be used; names its parameter, and why.
        """
        self._prototype(constraint)

    def matcher(self, constraint: OutputConstraint, stop_token_ids: frozenset[int]) -> GrammarMatcher:
        """See Matchers. Raises RequestError as `check` does."""
        ends = self._ends | stop_token_ids
        return GrammarMatcher(self._prototype(constraint), ends, len(self._tokens), constraint.reasoning)

    def _prototype(self, constraint: OutputConstraint) -> LLMatcher:
        with self._lock:
            if constraint in self._compiled:
                self._compiled.move_to_end(constraint)
                return self._compiled[constraint]
        compiled = self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = compiled
            while len(self._compiled) > NUM_KEPT:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, constraint: OutputConstraint) -> LLMatcher:
        parameter = constraint.parameter
        if not self._ends:
            raise RequestError(
                f"{parameter} needs a model that knows how to end a text, and this one has no EOS token", parameter
            )
        if len(constraint.text) > MAX_CHARACTERS:
            raise RequestError(
                f"{parameter} has {len(constraint.text)} characters; at most {MAX_CHARACTERS} work", parameter
            )
        try:
            compiled = LLMatcher(self._token_table(), _definition(constraint), log_level=0)
        except (ValueError, RecursionError) as error:
            raise _refusal(constraint, str(error) or type(error).__name__) from None
        if compiled.is_error():
            raise _refusal(constraint, compiled.get_error())
        return compiled

    def _token_table(self) -> LLTokenizer:
        with self._building:
            if self._tokenizer is None:
                table = _TokenTable(self._tokens, self._special, min(self._ends), self._encode)
                wrapper = TokenizerWrapper(table)
                self._tokenizer = LLTokenizer(wrapper, n_vocab=len(self._tokens), eos_token=sorted(self._ends))
            return self._tokenizer


class _TokenTable:
    """A vocabulary as llguidance's TokenizerWrapper reads one."""

    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], special: frozenset[int], eos_token_id: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(special)
        self.eos_token_id = eos_token_id
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def _definition(constraint: OutputConstraint) -> str:
    """In llguidance's own notation."""
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(inline_schema(json.loads(constraint.text)))
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(constraint.text)
        case ConstraintKind.CHOICE:
            texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(constraint.text))
            return LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
        case ConstraintKind.GRAMMAR:
            return grammar_from("grammar", constraint.text)


def inline_schema(schema: Any) -> str:
    """A JSON schema as it stands in a Lark grammar after `%json`, on one line, with our options and nobody else's."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
    return json.dumps(schema)


def _refusal(constraint: OutputConstraint, reason: str) -> RequestError:
    shown = " ".join(reason.split())
    shown = shown if len(shown) <= MAX_ERROR else shown[:MAX_ERROR] + "…"
    what = constraint.kind.value.replace("_", " ")
    what = "JSON schema" if constraint.kind is ConstraintKind.JSON_SCHEMA else what
    return RequestError(
        f"{constraint.parameter}: this {what} cannot be used: {shown}", constraint.parameter, "invalid_value"
    )
