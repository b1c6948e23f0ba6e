"""The OpenAPI description: it is served, says what every route takes, and is what routes do."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from server_helpers import RunningServer, Starter

from slipstream.server.description import BODIES, STREAMING

GENERATED = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
REVEALING = {"/v1/models", "/health", "/ready", "/version", "/metrics", "/v1/config"}


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(num_speculative_tokens=2)


@pytest.fixture(scope="module")
def description(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/openapi.json", timeout=60).raise_for_status().json()
    return found


def references(value: Any) -> set[str]:
    """Every `$ref` anywhere in a description."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(child) for child in value.values()))
    if isinstance(value, list):
        return set[str]().union(*(references(child) for child in value))
    return set()


def test_every_route_is_described(description: dict[str, Any]) -> None:
    assert GENERATED | REVEALING | {"/tokenize", "/detokenize"} <= set(description["paths"])
    assert set(STREAMING) == GENERATED and set(BODIES) <= set(description["paths"])


def test_every_post_says_what_it_takes(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            assert ("requestBody" in operation) == (method == "post"), path
            assert {"200", "4XX", "5XX"} == set(operation["responses"]), path
    body = description["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    chat = schemas[body["$ref"].rsplit("/", 1)[1]]
    assert chat["required"] == ["messages"] and {"temperature", "speculative", "stream_options"} <= set(
        chat["properties"]
    )


def test_every_reference_leads_somewhere(description: dict[str, Any]) -> None:
    names = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert references(description) <= names


def test_errors_are_as_described(server: RunningServer, description: dict[str, Any]) -> None:
    error = description["components"]["schemas"]["Error"]["properties"]["error"]
    for path in BODIES:
        answer = httpx.post(server.url + path, json={"model": 3}, timeout=60)
        assert answer.status_code == 400, path
        assert set(answer.json()["error"]) == set(error["required"]), path
    assert httpx.get(f"{server.url}/v1/models/other", timeout=60).status_code == 404
