"""Prompts from files, from the built-in set and from random tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.bench.dataset import DatasetError, built_in, cut_to_length, from_jsonl, random_tokens

SHARED_PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "prompts"


def test_jsonl_takes_prompts_and_first_turns(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"turns": ["two", "later"]}\n', encoding="utf-8")
    dataset = from_jsonl(path)
    assert [prompt.text for prompt in dataset.take(3)] == ["one", "two", "one"]
    assert not dataset.is_synthetic


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}\nnot json', "line 2: not JSON"),
        ('{"text": "a"}', "line 1: expected"),
        ('{"turns": []}', "line 1"),
        ("\n", "no prompts"),
        ("9" * 5000, "line 1: not JSON"),
        ("[" * 100_000, "line 1: not JSON"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=message):
        from_jsonl(path)


def test_a_missing_file_is_an_error_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot read prompts"):
        from_jsonl(tmp_path / "none.jsonl")


@pytest.mark.skipif(not SHARED_PROMPTS.is_dir(), reason="prompt files of the wider project are not here")
@pytest.mark.parametrize("name", ["gsm8k", "humaneval", "mt-bench"])
def test_public_prompt_files_load(name: str) -> None:
    assert len(from_jsonl(SHARED_PROMPTS / f"{name}.jsonl").prompts) >= 10


def test_n3_random_tokens_say_they_are_synthetic() -> None:
    dataset = random_tokens(3, 7, vocab_size=50, seed=2)
    assert dataset.is_synthetic
    assert all(len(prompt.token_ids or ()) == 7 for prompt in dataset.prompts)
    assert max(max(prompt.token_ids or ()) for prompt in dataset.prompts) < 50
    assert dataset == random_tokens(3, 7, vocab_size=50, seed=2)
    assert not built_in().is_synthetic


def test_cut_prompts_are_long_enough_and_differ() -> None:
    dataset = cut_to_length("x", [[1, 2, 3], [4, 5]], count=5, length=4)
    assert [prompt.token_ids for prompt in dataset.prompts] == [
        (1, 2, 3, 4), (4, 5, 1, 2), (2, 3, 4, 5), (5, 1, 2, 3), (3, 4, 5, 1),
    ]  # fmt: skip
