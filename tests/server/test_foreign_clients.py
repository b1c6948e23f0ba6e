"""How foreign clients are run (benchmarks/clients): two whole ones, one that fails, and every command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from server_helpers import NAME, RunningServer, Starter

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from clients.catalogue import CLIENTS, LARGE, Client, Visit
from clients.visiting import visit


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=3)


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_clients_at_hand_see_what_is_right(server: RunningServer, tmp_path: Path, name: str) -> None:
    [client] = [client for client in CLIENTS if client.name == name]
    outcome = visit(client, server.url, NAME, tmp_path / "tokenizer", tmp_path / name)
    assert outcome.error is None
    assert outcome.report["version"] and NAME in " ".join(outcome.command)


def test_a_client_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    failing = Client("failing", (), lambda _: [sys.executable, "-c", "import sys; sys.exit('nothing answers')"])
    outcome = visit(failing, "http://127.0.0.1:9", NAME, tmp_path, tmp_path / "failing")
    assert outcome.report is None and outcome.error is not None and "nothing answers" in outcome.error


def test_a_report_that_is_no_json_is_a_failure(tmp_path: Path) -> None:
    chatty = Client("chatty", (), lambda _: [sys.executable, "-c", "print('done')"])
    outcome = visit(chatty, "http://127.0.0.1:9", NAME, tmp_path, tmp_path / "chatty")
    assert outcome.report is None and outcome.error


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_command_names_server_and_model_and_every_requirement_is_pinned(client: Client, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer"
    words = " ".join(
        client.command(Visit(tmp_path / "bin" / "python", "http://127.0.0.1:1", NAME, tokenizer, tmp_path))
    )
    assert "http://127.0.0.1:1" in words and NAME in words
    assert (str(tokenizer) in words) == client.needs_tokenizer
    assert all("==" in requirement for requirement in client.requirements)
    assert client.report is None or str(tmp_path) in words


def test_those_left_out_are_in_the_catalogue() -> None:
    assert set(LARGE) <= {client.name for client in CLIENTS}
