"""Writes a model's tokenizer as a folder that `transformers.AutoTokenizer` reads, for tools that count tokens.

python -m slipstream.models.tokenizer_folder FOLDER [MODEL]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slipstream.config import EMBEDDED_MODEL
from slipstream.models.config import ModelLoadError
from slipstream.models.loading import ModelSource, open_model


def write_tokenizer_folder(source: ModelSource, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, whatever format the model itself has; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = source.tokenizer
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.eos_token_ids:
        config["eos_token"] = tokenizer.id_to_token(tokenizer.eos_token_ids[0])
    if tokenizer.bos_token_id is not None:
        config["bos_token"] = tokenizer.id_to_token(tokenizer.bos_token_id)
    if source.chat_template is not None:
        config["chat_template"] = source.chat_template.source
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Exit status; 2 when the model cannot be opened."""
    parser = argparse.ArgumentParser(description="Write a model's tokenizer as a folder that transformers reads.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL, help=f"as for serve (default: {EMBEDDED_MODEL})")
    args = parser.parse_args(arguments)
    try:
        write_tokenizer_folder(open_model(args.model), args.folder)
    except ModelLoadError as error:
        print(f"tokenizer_folder: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
