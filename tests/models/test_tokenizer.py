"""Token ids equal to transformers'; bytes of tokens add up to the text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny_gguf
from tiny_models import write_tiny_hf_model
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from slipstream.models.embedded import ensure_embedded_model
from slipstream.models.loading import open_model
from slipstream.models.tokenizer import Tokenizer, byte_level_alphabet
from slipstream.request import RequestError

PROMPTS = Path(__file__).parents[2] / ".." / "shared" / "data" / "prompts"
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  blanks \t tab\n\n\nlines\r\n end   ",
    "12345 3.14159 1,000,000 x86_64 2nd  7   8",
    "½ ² Ⅷ ٣٤ 一二三 ①",
    "I'm you've don't O'Neill's WE'LL",
    "naïve café Ǆ ﬁ é",
    "日本語のテキスト 中文 한국어 ภาษาไทย עברית العربية",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪 👍🏽",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # comment\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start|> <|im_end|>12<|im_end|>",
    "\x00\x01\x7f\u200b\u2028\ufeff\U0010ffff",
]


def cut_at_digits(text: str, special: list[str]) -> list[str]:
    """SmolLM's first step: each character of Unicode's number categories stands alone (special tokens stay whole)."""
    pieces = [""]
    position = 0
    while position < len(text):
        token = next((token for token in special if text.startswith(token, position)), None)
        if token is None and unicodedata.category(text[position]).startswith("N"):
            pieces += [text[position], ""]
        else:
            pieces[-1] += token or text[position]
        position += len(token or text[position])
    return [piece for piece in pieces if piece]


def prompt_texts() -> list[str]:
    lines = [line for path in sorted(PROMPTS.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    return [turn for line in lines for turn in json.loads(line)["turns"]]


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return open_model(str(ensure_embedded_model())).tokenizer


@pytest.fixture(scope="module")
def oracle() -> Any:
    transformers = pytest.importorskip("transformers")
    path = ensure_embedded_model()
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def check_against(oracle: Any, smollm: Tokenizer, texts: list[str]) -> None:
    """transformers' conversion of a GGUF forgets that SmolLM cuts at digits, so it is given the pieces one by one."""
    special = [smollm.token_text(token_id) for token_id in smollm.special_ids]
    for text in texts:
        expected = [
            token_id
            for piece in cut_at_digits(text, special)
            for token_id in oracle.encode(piece, add_special_tokens=False)
        ]
        ids = smollm.encode(text)
        assert ids == expected, text
        assert smollm.decode(ids, skip_special_tokens=False) == text
        assert b"".join(map(smollm.token_bytes, ids)).decode("utf-8") == text


@pytest.mark.model
def test_smollm_equals_transformers(smollm: Tokenizer, oracle: Any) -> None:
    check_against(oracle, smollm, TEXTS)


@pytest.mark.model
@pytest.mark.skipif(not PROMPTS.is_dir(), reason="the prompt collections are not here")
def test_smollm_equals_transformers_on_prompts(smollm: Tokenizer, oracle: Any) -> None:
    texts = prompt_texts()
    assert len(texts) > 100
    check_against(oracle, smollm, texts)


@pytest.mark.model
def test_smollm_facts(smollm: Tokenizer) -> None:
    assert smollm.vocab_size == 49152
    assert smollm.special_ids == frozenset(range(17))
    assert smollm.eos_token_ids == (2,)
    assert smollm.encode("a  1") == smollm.encode("a") + smollm.encode("  ") + smollm.encode("1")
    assert smollm.decode(smollm.encode("<|im_start|>hi<|im_end|>")) == "hi"


# Each pre-tokenizer on a text that the others cut differently; the words are hand-derived from its published pattern.
CUTS = {
    "smollm": ["ab", "'s", "  ", "1", "2", "3", "4", " don", "'t", "  ", " X", "!", "\n\n"],
    "gpt2": ["ab", "'s", " ", " 1234", " don", "'t", "  ", " X", "!", "\n\n"],
    "llama-bpe": ["ab", "'s", " ", " ", "123", "4", " don", "'t", "  ", " X", "!\n\n"],
    "qwen2": ["ab", "'s", " ", " ", "1", "2", "3", "4", " don", "'t", "  ", " X", "!\n\n"],
}


@pytest.mark.parametrize("name", CUTS)
def test_words_before_bpe(tmp_path: Path, name: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", pre_tokenizer=name)
    backend = open_model(str(tmp_path / "tiny.gguf")).tokenizer.backend
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("ab's  1234 don't   X!\n\n")]
    alphabet = byte_level_alphabet()
    assert [bytes(alphabet[character] for character in word).decode() for word in words] == CUTS[name]


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", "qwen2", pre_tokenizer="qwen2")
    tokenizer = open_model(str(tmp_path / "tiny.gguf")).tokenizer
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_user_defined_tokens_are_found_whole_but_not_special(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    tokenizer = open_model(str(path)).tokenizer
    kinds = [3 if i in tokenizer.special_ids else 1 for i in range(tokenizer.vocab_size)]
    token_id = tokenizer.encode(" and")[0]
    assert tokenizer.token_text(token_id) == " and"
    kinds[0] = 4
    write_tiny_gguf(path, metadata={"tokenizer.ggml.token_type": kinds})
    tokenizer = open_model(str(path)).tokenizer
    assert tokenizer.encode("a<|endoftext|>")[-1] == 0
    assert 0 not in tokenizer.special_ids
    assert tokenizer.decode([0, 2]) == "<|endoftext|>"


def test_hf_directory_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = write_tiny_hf_model(tmp_path)
    ours, theirs = open_model(str(directory)).tokenizer, transformers.AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
        assert b"".join(map(ours.token_bytes, ours.encode(text))).decode("utf-8") == text


def test_truncation_and_padding_saved_with_a_tokenizer_are_off(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path)
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    backend.save(str(directory / "tokenizer.json"))
    tokenizer = open_model(str(directory)).tokenizer
    assert len(tokenizer.encode("x" * 10)) == 10
    assert len(tokenizer.encode("x")) == 1


def test_half_a_surrogate_pair_is_a_request_error(tmp_path: Path) -> None:
    tokenizer = open_model(str(write_tiny_hf_model(tmp_path))).tokenizer
    with pytest.raises(RequestError, match=r"U\+D83D"):
        tokenizer.encode("ok \ud83d")


def test_ids_without_a_token_are_silent(tmp_path: Path) -> None:
    tokenizer = open_model(str(write_tiny_hf_model(tmp_path))).tokenizer
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.id_to_token(tokenizer.vocab_size + 5) is None


def test_a_part_of_a_character(tmp_path: Path) -> None:
    tokenizer = open_model(str(write_tiny_hf_model(tmp_path))).tokenizer
    ids = tokenizer.encode("😀")
    assert len(ids) == 4
    assert tokenizer.decode(ids[:3]).endswith("\ufffd")
    assert tokenizer.token_text(ids[0]) == "\ufffd"


def test_sentencepiece_style_vocabulary() -> None:
    """▁ is a blank and <0xF0> a byte, as in Llama 2's tokenizer.json."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "b"]
    backend = Backend(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(backend)
    assert tokenizer.token_bytes(257) == b" a"
    assert tokenizer.token_bytes(1 + 0xF0) == b"\xf0"
    assert tokenizer.token_bytes(258) == b"b"
