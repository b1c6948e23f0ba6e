"""Bodies made from the OpenAPI description, and such with one field gone wrong, are answered or refused, never 5xx."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from engine_helpers import printable_logits
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_helpers import NAME, RunningServer, Starter

from slipstream.server.description import BODIES

EXAMPLES = 40
MAX_ITEMS = 3
# A few values that are likelier to be taken than what is drawn, so that requests get beyond the first check.
LIKELY: dict[str, Any] = {"model": NAME, "role": "user", "max_tokens": 4, "max_completion_tokens": 4, "n": 2}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def server(start_server: Starter) -> RunningServer:
    return start_server(printable_logits(), num_speculative_tokens=3, max_model_len=48)


@pytest.fixture(scope="module")
def schemas(server: RunningServer) -> dict[str, Any]:
    found = httpx.get(f"{server.url}/openapi.json", timeout=60).raise_for_status().json()
    kinds: dict[str, Any] = found["components"]["schemas"]
    for path in BODIES:
        kinds[path] = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return kinds


def values(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that fit a JSON schema of the kinds that pydantic writes."""
    if "$ref" in schema:
        return values(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas, depth)
    if "anyOf" in schema:
        return st.one_of(*(values(branch, schemas, depth) for branch in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return objects(schema, schemas, depth + 1)
    if kind == "array":
        most = MAX_ITEMS if depth < 4 else 0
        return st.lists(values(schema.get("items", {}), schemas, depth + 1), max_size=most)
    if kind == "integer":
        return st.integers(schema.get("minimum", -3), min(schema.get("maximum", 40), 40))
    return {
        "string": st.text(max_size=min(schema.get("maxLength", 12), 12)),
        "number": st.floats(-3, 3),
        "boolean": st.booleans(),
        "null": st.none(),
    }.get(kind or "", JSON)


@st.composite
def objects(draw: st.DrawFn, schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> dict[str, Any]:
    properties = schema["properties"]
    required = set(schema.get("required", ()))
    chosen = draw(st.sets(st.sampled_from(sorted(properties)), max_size=6)) if depth < 5 else set[str]()
    made: dict[str, Any] = {}
    for name in sorted(required | chosen):
        likely = name in LIKELY and draw(st.booleans())
        made[name] = LIKELY[name] if likely else draw(values(properties[name], schemas, depth))
    return made


@pytest.mark.parametrize("path", BODIES)
def test_no_described_body_makes_the_server_fail(server: RunningServer, schemas: dict[str, Any], path: str) -> None:
    seen: set[int] = set()

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def send(data: st.DataObject) -> None:
        body = data.draw(values(schemas[path], schemas))
        if data.draw(st.integers(0, 3)) == 0:
            body[data.draw(st.sampled_from([*sorted(body), "unknown"]))] = data.draw(JSON)
        answer = httpx.post(server.url + path, json=body, timeout=120)
        seen.add(answer.status_code)
        assert answer.status_code < 500, (body, answer.text)
        assert answer.status_code == 200 or answer.json()["error"]["message"]

    send()
    assert min(seen) < 500 and seen <= {200, 400, 404}, seen
    server.wait_idle(30)
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
