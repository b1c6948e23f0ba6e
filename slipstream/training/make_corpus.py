"""From settings to a folder of dialogues; goes on where it was cut off."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from slipstream.config import SettingError
from slipstream.engine.llm import LLM
from slipstream.training.corpus import CorpusFolder
from slipstream.training.dialogue_writer import DialogueWriter
from slipstream.training.prompts import PromptSource
from slipstream.training.settings import DataSettings


def data_identity(settings: DataSettings, model: str) -> dict[str, object]:
    """JSON of everything the dialogues depend on; the number of them aside, so that more can be added."""
    values = dataclasses.asdict(settings)
    values.pop("num_dialogues")
    values["temperatures"] = {str(key): value for key, value in settings.temperatures.items()}
    return {"model": model, **values}


def make_corpus(
    folder: Path, settings: DataSettings, model: str, open_llm: Callable[[], LLM], on_progress: Callable[[int], None]
) -> CorpusFolder:
    """Write what is missing of the dialogues; their number is rounded up to whole files.

    Args:
        open_llm: loads the model; not called when nothing is missing.
        on_progress: hears how many dialogues, dropped ones included, are done.

    Raises:
        SettingError: the folder holds dialogues made with other settings.
    """
    corpus = CorpusFolder(folder)
    _check_identity(folder, data_identity(settings, model))
    source = PromptSource(settings)
    size = settings.num_per_file
    writer: DialogueWriter | None = None
    for number in range(-(-settings.num_dialogues // size)):
        last = (number + 1) * size
        if not corpus.has(number):
            writer = writer or DialogueWriter(open_llm(), settings)
            corpus.write(number, writer.write([source.start(i) for i in range(number * size, last)]))
            with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps({"file": number, "dropped_so_far": dataclasses.asdict(writer.dropped)}) + "\n")
        on_progress(last)
    return corpus


def _check_identity(folder: Path, identity: dict[str, object]) -> None:
    path = folder / "settings.json"
    if path.is_file():
        if json.loads(path.read_text(encoding="utf-8")) != json.loads(json.dumps(identity)):
            raise SettingError(f"{folder} holds dialogues made with other settings; give another --output or remove it")
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(identity, indent=2), encoding="utf-8")
    part.replace(path)
