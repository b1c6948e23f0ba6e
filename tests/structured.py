"""A small vocabulary of text, twenty schemas, a talkative model and drafters that want to break its grammar."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from slipstream.request import ConstraintKind, OutputConstraint
from slipstream.sampling.grammar import GrammarCompiler
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock, DraftRequest
from slipstream.simulation.drafters import Predict
from slipstream.simulation.scripted import HashedLogits, Logits

# Printable ASCII a byte a token, pieces that cross the borders of JSON's grammar, halves of characters, no text, EOS.
_PIECES = [b'{"', b'":', b'",', b'", "', b'"}', b"}}", b"]}", b"true", b"null", b"12", b"abc", b"\n", b"\xc3", b"\xa9"]
TOKEN_BYTES = [bytes([byte]) for byte in range(0x20, 0x7F)] + _PIECES + [b"", b"<|end|>"]
EOS = len(TOKEN_BYTES) - 1
VOCAB_SIZE = len(TOKEN_BYTES) + 1  # the model's is larger than the tokenizer's

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]},
    {"type": "object", "properties": {"s": {"type": "string", "maxLength": 5}}, "required": ["s"]},
    {"type": "object", "properties": {"s": {"type": "string", "pattern": "^[a-c]{1,4}$"}}, "required": ["s"]},
    {"type": "object", "properties": {"n": {"type": "number"}}, "additionalProperties": False},
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 17}}, "required": ["n"]},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False, "minItems": 2},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, None, True, "x", [1, 2], {"a": None}]},
    {"type": "string", "maxLength": 8},
    {"type": "boolean"},
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "null"}}]},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}},
        "required": ["v"],
        "additionalProperties": False,
    },
    {
        "$defs": {"p": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/p"},
        "maxItems": 3,
    },
    {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "deep": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
        },
        "required": ["kind", "tags", "deep"],
        "additionalProperties": False,
    },
]


def make_grammars() -> GrammarCompiler:
    return GrammarCompiler(
        TOKEN_BYTES,
        special_token_ids=frozenset({EOS}),
        eos_token_ids=(EOS,),
        vocab_size=VOCAB_SIZE,
        encode=lambda text: [TOKEN_BYTES.index(bytes([byte])) for byte in text.encode() if 0x20 <= byte < 0x7F],
    )


def json_of(schema: Any) -> OutputConstraint:
    return OutputConstraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema))


def text_of(token_ids: Sequence[int]) -> bytes:
    """The bytes of an output; EOS is no text."""
    return b"".join(TOKEN_BYTES[token_id] for token_id in token_ids if token_id != EOS)


def tokens_of(text: str) -> list[int]:
    """One token a byte."""
    return [TOKEN_BYTES.index(bytes([byte])) for byte in text.encode()]


class TalkativeLogits:
    """Noise that closes what it opens a little more readily than it goes on."""

    def __init__(self, seed: int = 0) -> None:
        self._noise = HashedLogits(VOCAB_SIZE, seed, window=4, scale=1.5)
        self._bias = np.zeros(VOCAB_SIZE)
        for token_id, piece in enumerate(TOKEN_BYTES):
            self._bias[token_id] = 3.0 * any(byte in b'"}]' for byte in piece) - 2.0 * piece.isspace()
        self._bias[EOS] = 3.0

    def __call__(self, prefix: Sequence[int]) -> Logits:
        return self._noise(prefix) + self._bias


class AdversarialDrafter:
    """Blocks of what the target will say, spoilt by turns: any tokens, EOS too early, EOS over and over, a wrong token,
    one that stands for nothing; and whole good ones. The same for the same request and prefix."""

    layout = LAYOUTS["dspark"]

    def __init__(self, predict: Predict, vocab_size: int = VOCAB_SIZE, eos: int = EOS) -> None:
        self._predict = predict
        self._vocab_size = vocab_size
        self._eos = eos

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        return [DraftBlock(self._block(request), [0.5] * request.num_draft_tokens) for request in requests]

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""

    def _block(self, request: DraftRequest) -> list[int]:
        count = request.num_draft_tokens
        dice = random.Random(f"{request.request_id} {len(request.token_ids)}")
        way = dice.randrange(6)
        if way == 0:
            return [dice.randrange(self._vocab_size) for _ in range(count)]
        prefix, drafts = list(request.token_ids), list[int]()
        for _ in range(count):
            drafts.append(self._predict(request, prefix))
            prefix.append(drafts[-1])
        place = dice.randrange(count)
        if way == 1:
            drafts[place] = self._eos
        elif way == 2:
            drafts[place:] = [self._eos] * (count - place)
        elif way == 3:
            drafts[place] = (drafts[place] + 1) % self._vocab_size
        elif way == 4:
            drafts[place] = self._vocab_size - 1  # in the small vocabulary it stands for nothing
        return drafts


def is_valid(schema: Any, text: bytes) -> bool:
    """Judged by another library than the one that made it so."""
    return bool(Draft202012Validator(schema).is_valid(json.loads(text)))
