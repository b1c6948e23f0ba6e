"""Tokenizer and chat template of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from slipstream.models.chat_template import ChatTemplate
from slipstream.models.config import ModelLoadError
from slipstream.models.files import errors_name, read_json
from slipstream.models.tokenizer import Tokenizer


def read_hf_tokenizer(directory: Path, eos_token_ids: tuple[int, ...], bos_token_id: int | None) -> Tokenizer:
    """Read tokenizer.json; EOS and BOS that the model's configuration leaves open come from tokenizer_config.json."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(
            f"{directory}: tokenizer.json is missing; save the model's fast tokenizer there "
            "(a SentencePiece tokenizer.model alone is not supported)"
        )
    with errors_name(path):
        backend = tokenizers.Tokenizer.from_file(str(path))
        names = _special_tokens(_tokenizer_config(directory))
        named = {key: backend.token_to_id(token) for key, token in names.items()}
        eos_token_id = named.get("eos_token")
        if not eos_token_ids and eos_token_id is not None:
            eos_token_ids = (eos_token_id,)
        if bos_token_id is None:
            bos_token_id = named.get("bos_token")
        return Tokenizer(backend, eos_token_ids=eos_token_ids, bos_token_id=bos_token_id)


def read_hf_chat_template(directory: Path) -> ChatTemplate | None:
    """The directory's chat template: chat_template.jinja, or the one in tokenizer_config.json; None without either."""
    config = _tokenizer_config(directory)
    tokens = _special_tokens(config)
    path = directory / "chat_template.jinja"
    if path.is_file():
        with errors_name(path):
            return ChatTemplate(path.read_text(encoding="utf-8"), special_tokens=tokens)
    with errors_name(directory / "tokenizer_config.json"):
        source = config.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = next(
                (item.get("template") for item in source if isinstance(item, dict) and item.get("name") == "default"),
                None,
            )
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelLoadError("chat_template must be text")
        return ChatTemplate(source, special_tokens=tokens)


def _tokenizer_config(directory: Path) -> Mapping[str, Any]:
    path = directory / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like: a text, or an object with one in `content`."""
    tokens: dict[str, str] = {}
    for key in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[key] = value
    return tokens
