"""A tokenizer from a GGUF file's metadata, equal to the Hugging Face tokenizer that the file was made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from slipstream.models.config import ModelLoadError
from slipstream.models.files import get_bool, get_int, get_str
from slipstream.models.tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type

# The pattern of OpenAI's cl100k; Llama 3 takes up to three digits at once, Qwen2 one.
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How text is cut into words before BPE.

    Attributes:
        parts: makes the steps of it.
        normalizer: applied before, or None.
        ignore_merges: a word that is in the vocabulary is one token whatever the merges say.
        add_bos: whether a file that does not say wants BOS in front.
    """

    parts: Callable[[], list[pre_tokenizers.PreTokenizer]]
    normalizer: Callable[[], normalizers.Normalizer] | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def _gpt2() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


def _smollm() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Digits(individual_digits=True), *_gpt2()]


def _cl100k(digits: str) -> list[pre_tokenizers.PreTokenizer]:
    return [
        pre_tokenizers.Split(Regex(_CL100K.format(digits=digits)), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


_LLAMA3 = _PreTokenizer(lambda: _cl100k("{1,3}"), ignore_merges=True, add_bos=True)
_QWEN2 = _PreTokenizer(lambda: _cl100k(""), normalizer=normalizers.NFC)
_GPT2 = _PreTokenizer(_gpt2)
_PRE_TOKENIZERS = {
    "smollm": _PreTokenizer(_smollm),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt2": _GPT2,
    "gpt-2": _GPT2,
    "default": _GPT2,
}


def gguf_tokenizer(metadata: Mapping[str, Any], *, vocab_size: int) -> Tokenizer:
    """Build the tokenizer.

    Args:
        metadata: of the file. vocab_size: rows of its embedding, one per token.

    Raises:
        ModelLoadError: another kind of tokenizer, or vocabulary and merges that do not fit together.
    """
    kind = get_str(metadata, "tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelLoadError(
            f"tokenizer {kind!r} in a GGUF file is not supported, only byte-level BPE ('gpt2'); "
            "the same model as a Hugging Face directory with a tokenizer.json works"
        )
    name = get_str(metadata, "tokenizer.ggml.pre", "default")
    if name not in _PRE_TOKENIZERS:
        raise ModelLoadError(
            f"pre-tokenizer {name!r} is not supported in GGUF files; supported are {', '.join(_PRE_TOKENIZERS)}"
        )
    pre_tokenizer = _PRE_TOKENIZERS[name]
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if len(tokens) != vocab_size:
        raise ModelLoadError(f"tokenizer.ggml.tokens has {len(tokens)} tokens, the embedding {vocab_size} rows")
    backend = tokenizers.Tokenizer(_bpe(tokens, _strings(metadata, "tokenizer.ggml.merges"), pre_tokenizer))
    if pre_tokenizer.normalizer is not None:
        backend.normalizer = pre_tokenizer.normalizer()
    backend.pre_tokenizer = pre_tokenizers.Sequence(pre_tokenizer.parts())
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type"))

    bos = _token_id(metadata, "bos_token_id", vocab_size)
    eos = _token_id(metadata, "eos_token_id", vocab_size)
    ends = [eos, _token_id(metadata, "eot_token_id", vocab_size), _token_id(metadata, "eom_token_id", vocab_size)]
    first = bos if get_bool(metadata, "tokenizer.ggml.add_bos_token", pre_tokenizer.add_bos) else None
    last = eos if get_bool(metadata, "tokenizer.ggml.add_eos_token", False) else None
    _add_template(backend, tokens, first, last)
    return Tokenizer(
        backend, eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)), bos_token_id=bos
    )


def _bpe(tokens: list[str], merges: list[str], pre_tokenizer: _PreTokenizer) -> models.BPE:
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        raise ModelLoadError(f"tokenizer.ggml.tokens holds {twice!r} twice")
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, blank, right = merge.partition(" ")
        if not (blank and left in vocabulary and right in vocabulary and left + right in vocabulary):
            raise ModelLoadError(f"tokenizer.ggml.merges: {merge!r} does not join two tokens to a third")
        pairs.append((left, right))
    return models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre_tokenizer.ignore_merges)


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], kinds: Any) -> None:
    """Tokens that are found in the text before anything else cuts it."""
    if kinds is None:
        return
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        raise ModelLoadError("tokenizer.ggml.token_type must give one number per token")
    control = [tokens[i] for i in np.flatnonzero(kinds == _CONTROL)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control if token])
    plain = [tokens[i] for i in np.flatnonzero(kinds == _USER_DEFINED)]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain if token])


def _add_template(backend: tokenizers.Tokenizer, tokens: list[str], first: int | None, last: int | None) -> None:
    if first is None and last is None:
        return
    # The template's own names: a token's text may hold blanks and colons, which its syntax cannot.
    before = "" if first is None else "FIRST "
    after = "" if last is None else " LAST"
    special = [(name, token) for name, token in (("FIRST", first), ("LAST", last)) if token is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{before}$A{after}",
        pair=f"{before}$A{after} {before}$B:1{after}",
        special_tokens=[{"id": name, "ids": [token], "tokens": [tokens[token]]} for name, token in special],
    )


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise ModelLoadError(f"{key} is missing or no list of texts")
    return value


def _token_id(metadata: Mapping[str, Any], name: str, vocab_size: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    if metadata.get(key) is None:
        return None
    token_id = get_int(metadata, key)
    if not 0 <= token_id < vocab_size:
        raise ModelLoadError(f"{key} is {token_id}, outside the vocabulary of {vocab_size}")
    return token_id
