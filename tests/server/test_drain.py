"""SIGTERM to a real process: answers come to their end, or to the timeout's; nobody new is taken meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from server_helpers import NAME

from slipstream.server.systemd import SystemdNotifier

SCRIPT = Path(__file__).with_name("drained_server.py")
WAIT_S = 120  # for what takes a moment; a machine may be busy
NUM_TOKENS = 30


@contextmanager
def process(timeout_s: float, gate: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    started = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(timeout_s), str(gate)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment},
    )
    try:
        assert started.stdout is not None
        yield started, f"http://127.0.0.1:{int(started.stdout.readline())}"
    finally:
        started.kill()
        started.communicate()


def streamed(url: str, received: list[str], has_begun: threading.Event) -> None:
    body = {"model": NAME, "prompt": "hi", "max_tokens": NUM_TOKENS, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=WAIT_S) as answer:
        for line in answer.iter_lines():
            received.append(line)
            has_begun.set()


def begin_stream(url: str) -> tuple[threading.Thread, list[str]]:
    received: list[str] = []
    has_begun = threading.Event()
    thread = threading.Thread(target=streamed, args=(url, received, has_begun), daemon=True)
    thread.start()
    assert has_begun.wait(WAIT_S)
    return thread, received


def wait_until_draining(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while httpx.get(f"{url}/ready", timeout=WAIT_S).status_code != 503:
        assert time.monotonic() < deadline


def test_running_answers_end_well_and_new_ones_are_refused(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with process(300.0, gate) as (server, url):
        thread, received = begin_stream(url)
        server.send_signal(signal.SIGTERM)
        wait_until_draining(url)
        assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200, "it is alive, and must not be restarted"
        late = httpx.post(f"{url}/v1/completions", json={"model": NAME, "prompt": "hi"}, timeout=WAIT_S)
        assert late.status_code == 503 and "shutting down" in late.json()["error"]["message"]
        gate.touch()
        thread.join(WAIT_S)
        assert not any('"error"' in line for line in received) and any('"length"' in line for line in received)
        assert "data: [DONE]" in received
        assert server.wait(WAIT_S) == 0


def test_what_does_not_end_in_time_is_told_why(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with process(0.5, gate) as (server, url):
        thread, received = begin_stream(url)
        server.send_signal(signal.SIGTERM)
        thread.join(WAIT_S)
        assert any("the server is shutting down" in line for line in received) and "data: [DONE]" in received
        gate.touch()
        assert server.wait(WAIT_S) == 0
        assert server.stderr is not None
        logged = [json.loads(line)["message"] for line in server.stderr if line.startswith("{")]
        assert any("did not end in time" in message for message in logged)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with process(300.0, gate) as (server, url):
        thread, received = begin_stream(url)
        server.send_signal(signal.SIGTERM)
        wait_until_draining(url)
        server.send_signal(signal.SIGTERM)
        thread.join(WAIT_S)
        assert any("the server is shutting down" in line for line in received)
        gate.touch()
        assert server.wait(WAIT_S) == 0


def test_systemd_hears_ready_alive_and_stopping(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address)
        channel.settimeout(WAIT_S)
        with process(5.0, tmp_path / "gate", NOTIFY_SOCKET=address, WATCHDOG_USEC="400000") as (server, _):
            said = {channel.recv(100) for _ in range(4)}
            assert said == {b"READY=1", b"WATCHDOG=1"}
            server.send_signal(signal.SIGTERM)
            while channel.recv(100) != b"STOPPING=1":
                pass
            assert server.wait(WAIT_S) == 0


def test_without_systemd_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    SystemdNotifier({}).say("READY=1")
    assert not caplog.records
    SystemdNotifier({"NOTIFY_SOCKET": "/no/such/socket"}).say("READY=1")
    assert "READY=1" in caplog.text
