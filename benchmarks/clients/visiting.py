"""Runs one foreign client against one server: its environment, its process, its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.catalogue import Client, Visit, python_of

INSTALLED = "requirements.txt"
INSTALL_S, RUN_S = 3600, 3600
TAIL = 4000
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


class ClientFailedError(Exception):
    """A client could not be installed, or ended with an error; the text holds the end of what it said."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a visit.

    Attributes:
        seconds: the client's own run. report: the JSON that it gave; None where it failed. error: why.
    """

    client: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]
    seconds: float
    report: Any
    error: str | None = None


def install(client: Client, folder: Path) -> Path:
    """Make the client's environment, unless it is there; gives its interpreter. Raises ClientFailedError."""
    python = python_of(client, folder)
    wanted = "\n".join(client.requirements)
    note = folder / INSTALLED
    if not client.requirements or (note.is_file() and note.read_text(encoding="utf-8").strip() == wanted):
        return python
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], INSTALL_S, {})
    _run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *client.requirements],
        INSTALL_S,
        {},
    )
    note.write_text(wanted + "\n", encoding="utf-8")
    return python


def visit(client: Client, url: str, model: str, tokenizer: Path, folder: Path) -> Outcome:
    """Run it against a server, and read what it reported. Never raises for a client that fails."""
    started = time.monotonic()
    command: list[str] = []
    try:
        python = install(client, folder)
        report = folder / "report"
        report.mkdir(parents=True, exist_ok=True)
        command = client.command(Visit(python, url, model, tokenizer, report))
        started = time.monotonic()
        printed = _run(command, RUN_S, OFFLINE if client.is_told_offline else {})
        text = printed if client.report is None else (report / client.report).read_text(encoding="utf-8")
        found = json.loads(text)
    except (ClientFailedError, OSError, ValueError) as error:
        seconds = time.monotonic() - started
        return Outcome(client.name, client.requirements, tuple(command), seconds, None, str(error))
    return Outcome(client.name, client.requirements, tuple(command), time.monotonic() - started, found)


def _run(command: list[str], seconds: float, variables: Mapping[str, str]) -> str:
    """What it prints. Raises ClientFailedError when it fails or takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, env={**os.environ, **variables}
        )
    except subprocess.TimeoutExpired:
        raise ClientFailedError(f"{command[0]} took longer than {seconds:g} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr)[-TAIL:]
        raise ClientFailedError(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{said}")
    return done.stdout
