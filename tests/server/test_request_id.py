"""Request ids: sane ones are kept, others replaced; every answer and every log line has one."""

from __future__ import annotations

import json
import logging
import re
import socket

import httpx
import pytest
from server_helpers import NAME, RunningServer, Starter

from slipstream.server.logs import JsonFormatter, RequestIdFilter, TextFormatter
from slipstream.server.options import ServerOptions
from slipstream.server.request_context import CURRENT_REQUEST, RequestContext
from slipstream.server.request_id import request_id_of

MADE_HERE = re.compile("[0-9a-f]{32}")


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(options=ServerOptions(allowed_origins=("https://chat.example.com",)))


@pytest.mark.parametrize("sent", ["a", "6f3c-11", "trace:abc/1=2+3@x", "x" * 128])
def test_sane_ids_are_kept(sent: str) -> None:
    assert request_id_of([(b"x-request-id", sent.encode())]) == sent


@pytest.mark.parametrize(
    "sent",
    [[], [b""], [b"x" * 129], [b"a b"], [b"a\r\nSet-Cookie: x"], [b"-a"], [b"{}"], [b"\xff"], [b"a", b"b"], [b'"']],
    ids=range(10),
)
def test_others_are_replaced(sent: list[bytes]) -> None:
    assert MADE_HERE.fullmatch(request_id_of([(b"x-request-id", value) for value in sent]))


@pytest.mark.parametrize("path", ["/v1/models", "/nothing", "/health"])
def test_answers_carry_the_id(server: RunningServer, path: str) -> None:
    assert httpx.get(server.url + path, headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert MADE_HERE.fullmatch(httpx.get(server.url + path).headers["x-request-id"])


def test_streams_and_refusals_carry_it_too(server: RunningServer) -> None:
    body = {"model": NAME, "prompt": "hi", "max_tokens": 2, "stream": True}
    for content in (json.dumps(body), "{"):
        answer = httpx.post(f"{server.url}/v1/completions", content=content, headers={"X-Request-Id": "s"})
        assert answer.headers["x-request-id"] == "s"


def test_the_access_log_has_it_and_cannot_be_forged(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "slipstream.server.access_log"):
        httpx.get(f"{server.url}/v1/models%0a2026 INFO forged", headers={"X-Request-Id": "mine"})
        address, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((address, int(port))) as connection:
            connection.sendall(b"G~T /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while connection.recv(4096):
                pass
        httpx.get(f"{server.url}/health")
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("access_log")]
    assert len(lines) == 2 and all("\n" not in line for line in lines)
    assert lines[0].startswith("GET '/v1/models\\n2026 INFO forged' 404, ")


def test_browsers_of_the_named_origin_may_call_and_no_others(server: RunningServer) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, allowed in (("https://chat.example.com", True), ("https://evil.example.com", False)):
        preflight = httpx.options(f"{server.url}/v1/completions", headers={"Origin": origin, **asked})
        answer = httpx.get(f"{server.url}/v1/models", headers={"Origin": origin})
        assert (preflight.headers.get("access-control-allow-origin") == origin) is allowed
        assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
        assert not allowed or "X-Request-Id" in answer.headers["access-control-expose-headers"]


def record_of(message: str, **extra: object) -> logging.LogRecord:
    record = logging.getLogger("slipstream.x").makeRecord(
        "slipstream.x", logging.INFO, __file__, 1, message, (), None, extra=extra
    )
    RequestIdFilter().filter(record)
    return record


def test_log_lines_as_json_and_as_text() -> None:
    token = CURRENT_REQUEST.set(RequestContext("abc"))
    try:
        record = record_of("two\nlines", status=200, key_number=None)
    finally:
        CURRENT_REQUEST.reset(token)
    line = JsonFormatter().format(record)
    entry = json.loads(line)
    assert "\n" not in line and entry.pop("time").endswith("Z")
    expected = {"level": "info", "logger": "slipstream.x", "message": "two\nlines", "request_id": "abc", "status": 200}
    assert entry == expected
    assert TextFormatter().format(record_of("hello")).endswith(" INFO hello")
    assert TextFormatter().format(record).endswith(" [abc]")
    assert "request_id" not in json.loads(JsonFormatter().format(record_of("outside")))


def test_an_exception_is_in_the_json_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        record = record_of("failed")
        import sys

        record.exc_info = sys.exc_info()
    assert "ValueError: broken" in json.loads(JsonFormatter().format(record))["exception"]
