"""A tokenizer folder is read by transformers and gives the ids that the model's own tokenizer gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from models.tiny_models import write_tiny_hf_model

from slipstream.models.loading import open_model
from slipstream.models.tokenizer_folder import main, write_tokenizer_folder

TEXTS = ("", "hello world", "  two  blanks\n\n", "日本 👩‍👩‍👧 é", "<|im_start|>user")


def check(model: str, folder: Path) -> None:
    source = open_model(model, progress=False)
    write_tokenizer_folder(source, folder)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert read.encode(text) == source.tokenizer.encode(text)
    if source.tokenizer.eos_token_ids:
        assert read.eos_token_id == source.tokenizer.eos_token_ids[0]
    assert read.chat_template == (source.chat_template.source if source.chat_template is not None else None)


def test_a_hugging_face_model(tmp_path: Path) -> None:
    write_tiny_hf_model(tmp_path / "model")
    check(str(tmp_path / "model"), tmp_path / "tokenizer")


@pytest.mark.model
def test_the_embedded_model(tmp_path: Path) -> None:
    check("smollm2-135m-instruct", tmp_path / "tokenizer")


def test_a_missing_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "tokenizer"), str(tmp_path / "nothing")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("tokenizer_folder: ") and said.count("\n") == 1
    assert not (tmp_path / "tokenizer").exists()
