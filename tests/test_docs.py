"""Case A6: every command that the documents show is run, or at least understood, by this release.

`slipstream …` lines are parsed by the real command line; those that serve must reach "ready" (a tiny model in place
of the named one); `make …` lines must name a target; named files must exist.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from models.tiny_models import write_tiny_hf_model

from slipstream.cli import LAB_COMMANDS, build_parser

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WAIT_S = 120


def commands(program: str) -> list[tuple[str, str]]:
    """(document, command) of every line in a code block, and every inline code, that runs `program`."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.DOTALL)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\n", " "))
        for line in lines:
            command = re.sub(r"\s+#.*$", "", line.strip().removeprefix("$ ").removeprefix(".venv/bin/"))
            if command.startswith(program + " ") and "…" not in command:
                found.append((document.name, command))
    return sorted(set(found))


SLIPSTREAM = commands("slipstream")
MAKE = commands("make")


def test_the_documents_show_commands() -> None:
    shown = " ".join(command for _, command in (*SLIPSTREAM, *MAKE))
    for word in ("make serve", "make test", "make compare", "slipstream generate", "slipstream bench"):
        assert word in shown


@pytest.mark.parametrize(("document", "command"), SLIPSTREAM)
def test_A6_every_slipstream_command_is_understood(document: str, command: str) -> None:
    arguments = shlex.split(command)[1:]
    if len(arguments) == 1 and arguments[0] in ("serve", "bench", "compare", "generate", *LAB_COMMANDS):
        return  # the bare name of a command, in prose
    if arguments[-1] == "--help":
        with pytest.raises(SystemExit) as ended:
            build_parser(arguments[0]).parse_args(arguments)
        assert ended.value.code == 0
        return
    build_parser(arguments[0]).parse_args(arguments)


@pytest.mark.parametrize(("document", "command"), MAKE)
def test_A6_every_make_target_exists(document: str, command: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert set(named) <= targets


def serving_commands() -> list[str]:
    """Flags of every shown server start, `make serve ARGS=…` included."""
    found = [""]
    for _, command in SLIPSTREAM:
        if command.startswith("slipstream serve") and not command.endswith("--help"):
            found.append(command.removeprefix("slipstream serve"))
    for _, command in MAKE:
        for word in shlex.split(command):
            if command.startswith("make serve") and word.startswith("ARGS="):
                found.append(word.removeprefix("ARGS="))
    return sorted(set(found))


@pytest.mark.parametrize("flags", serving_commands())
def test_A6_every_shown_server_reaches_ready(flags: str, tmp_path: Path) -> None:
    write_tiny_hf_model(tmp_path / "model")
    words = [word for word in shlex.split(flags) if word.startswith("-") or word.isdigit()]
    command = [sys.executable, "-m", "slipstream.cli", "serve", str(tmp_path / "model"), *words, "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as run:
        assert run.stdout is not None
        try:
            seen = []
            for line in run.stdout:
                seen.append(line)
                if line.startswith("Ready:"):
                    break
            else:
                pytest.fail("never ready:\n" + "".join(seen))
        finally:
            run.terminate()
            run.stdout.read()
    assert run.wait(WAIT_S) == 0


def test_files_named_in_the_documents_exist() -> None:
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
        for path in re.findall(r"`((?:slipstream|tests|docs|benchmarks|scenarios)/[\w/.-]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{document.name} names {path}"
