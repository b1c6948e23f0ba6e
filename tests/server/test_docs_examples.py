"""Examples in the documents that talk to a server are run against one: blocks of `python` and of `shell`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from server_helpers import NAME, RunningServer, Starter

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
SHOWN_URL, SHOWN_NAME = "http://127.0.0.1:8000", "smollm2-135m-instruct"


def examples(language: str) -> list[tuple[str, int, str]]:
    """(page, number, code) of every block in a language that names the server's address."""
    found = []
    for page in PAGES:
        blocks = re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        found += [(page.name, number, block) for number, block in enumerate(blocks) if SHOWN_URL in block]
    return found


PYTHON, SHELL = examples("python"), examples("shell")


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=4)


def against(server: RunningServer, code: str) -> str:
    return code.replace(SHOWN_URL, server.url).replace(SHOWN_NAME, NAME)


def test_every_guide_has_an_example() -> None:
    shown = {page for page, _, _ in (*PYTHON, *SHELL)}
    assert {
        "index.md",
        "from-vllm.md",
        "from-llama-cpp.md",
        "from-sglang.md",
        "tuning.md",
        "troubleshooting.md",
    } <= shown


@pytest.mark.parametrize(("page", "number", "code"), PYTHON, ids=[f"{page}-{number}" for page, number, _ in PYTHON])
def test_python_examples_run(server: RunningServer, page: str, number: int, code: str) -> None:
    exec(compile(against(server, code), f"{page}, python block {number}", "exec"), {"__name__": "example"})


@pytest.mark.parametrize(("page", "number", "code"), SHELL, ids=[f"{page}-{number}" for page, number, _ in SHELL])
def test_shell_examples_run(server: RunningServer, page: str, number: int, code: str) -> None:
    command = ["bash", "-euo", "pipefail", "-c", against(server, code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "it showed nothing"
