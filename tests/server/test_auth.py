"""API keys: every route that is not named as open asks for one, and hostile headers open nothing."""

from __future__ import annotations

import http.client
from typing import Any

import httpx
import pytest
from server_helpers import NAME, RunningServer, Starter

from slipstream.config import SettingError
from slipstream.server.api_keys import KEYS_VARIABLE, read_api_keys
from slipstream.server.auth import ApiKeys, sent_keys
from slipstream.server.options import ServerOptions

KEY, OTHER = "sk-first-0123456789", "sk-second-0123456789"
BODY = {"model": NAME, "prompt": "hi", "max_tokens": 1}


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(options=ServerOptions(api_keys=(KEY, OTHER), root_path="/llm"))


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_but_the_probes_asks_for_a_key(server: RunningServer) -> None:
    described = httpx.get(f"{server.url}/openapi.json", headers=headers(KEY)).json()["paths"]
    paths = {*described, "/openapi.json", "/docs", "/nothing", "/page.html"} - {"/health", "/ready"}
    assert {"/v1/completions", "/v1/models", "/v1/config", "/v1/live", "/version", "/metrics"} <= paths
    for path in paths:
        for method in ("GET", "POST", "HEAD"):
            answer = httpx.request(method, server.url + path.replace("{name}", "x"))
            assert answer.status_code == 401, (method, path)
            if method != "HEAD":
                error = answer.json()["error"]
                assert set(error) == {"message", "type", "param", "code"} and error["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/ready", "/llm/health", "/", "/llm/", "/page.js", "/page.css"):
        assert httpx.get(server.url + path).status_code == 200


@pytest.mark.parametrize(
    "sent", [headers(KEY), headers(OTHER), {"authorization": f"bearer  {KEY}"}, {"X-Api-Key": KEY}]
)
def test_each_key_opens_the_server(server: RunningServer, sent: dict[str, str]) -> None:
    assert httpx.post(f"{server.url}/v1/completions", json=BODY, headers=sent).status_code == 200
    assert httpx.get(f"{server.url}/llm/metrics", headers=sent).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        [("authorization", "")],
        [("authorization", KEY)],
        [("authorization", f"Basic {KEY}")],
        [("authorization", f"Bearer {KEY[:-1]}")],
        [("authorization", f"Bearer {KEY}x")],
        [("authorization", f"Bearer {KEY} {KEY}")],
        [("authorization", f"Bearer {KEY},{OTHER}")],
        [("authorization", f"Bearer {KEY.upper()}")],
        [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer no")],
        [("authorization", f"Bearer {KEY}"), ("x-api-key", "no")],
        [("authorization", "Bearer " + "x" * 30_000)],
        [("x-api-key", "\xff\xfe")],
        [("cookie", f"key={KEY}")],
    ],
    ids=range(13),
)
def test_nothing_else_does(server: RunningServer, sent: list[tuple[str, str]]) -> None:
    address = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.putrequest("GET", "/v1/models")
    for name, value in sent:
        connection.putheader(name, value.encode("latin-1"))
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.parametrize(
    "path", ["//health", "/health/", "/HEALTH", "/health/../v1/models", "/llm/llm/health", "/%68ealth/x"]
)
def test_paths_that_look_open_are_closed(server: RunningServer, path: str) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.request("GET", path)
    assert connection.getresponse().status == 401
    connection.close()


def test_metrics_can_be_left_open(start_server: Starter) -> None:
    server = start_server(options=ServerOptions(api_keys=(KEY,), open_metrics=True))
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    assert httpx.get(f"{server.url}/v1/config").status_code == 401


def test_keys_are_never_shown(server: RunningServer) -> None:
    shown = httpx.get(f"{server.url}/v1/config", headers=headers(KEY)).text
    assert KEY not in shown and KEY not in repr(ServerOptions(api_keys=(KEY,)))


def test_keys_are_numbered_in_order() -> None:
    keys = ApiKeys([KEY, OTHER])
    assert [keys.number_of(sent) for sent in (KEY.encode(), OTHER.encode(), b"", b"sk")] == [1, 2, None, None]
    assert ApiKeys([]).number_of(b"") is None


def test_the_same_key_twice_is_one_key() -> None:
    assert sent_keys([(b"authorization", b"Bearer k"), (b"x-api-key", b"k")]) == [b"k"]


def test_keys_come_from_flags_files_and_the_environment(tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("# team a\nsk-a\n\n  sk-b  \n")
    found = read_api_keys(["sk-c", "sk-a"], [str(file)], {KEYS_VARIABLE: "sk-d sk-e"})
    assert found == ("sk-c", "sk-a", "sk-b", "sk-d", "sk-e")


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "a\tb"])
def test_a_key_that_no_header_can_hold_is_refused_unseen(key: str) -> None:
    with pytest.raises(SettingError, match="API key 2 of 2") as refusal:
        read_api_keys(["fine", key], [], {})
    assert not key or key not in str(refusal.value)


def test_key_files_that_hold_nothing_are_refused(tmp_path: Any) -> None:
    (tmp_path / "empty").write_text("# none yet\n")
    for name, words in (("empty", "holds no key"), ("missing", "cannot be read")):
        with pytest.raises(SettingError, match=words):
            read_api_keys([], [str(tmp_path / name)], {})
