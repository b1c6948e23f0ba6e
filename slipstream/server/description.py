"""What `/openapi.json` says. Bodies are read by `read_body` and not by FastAPI, so their shapes are added here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from slipstream.server.wire.chat import ChatRequest
from slipstream.server.wire.completions import CompletionRequest
from slipstream.server.wire.messages import CountRequest, MessagesRequest
from slipstream.server.wire.objects import OpenObject
from slipstream.server.wire.responses import ResponsesRequest
from slipstream.server.wire.tokens import DetokenizeRequest, TokenizeRequest

BODIES: dict[str, type[OpenObject]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
STREAMING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
PLAIN_TEXT = ("/metrics",)
COMPONENTS = "#/components/schemas/"
# FastAPI's own shape of a refused parameter, which this server never sends.
NEVER_SENT = ("HTTPValidationError", "ValidationError")
ERROR: dict[str, Any] = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "type": {"const": "error", "description": "on /v1/messages only"},
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
    },
}


class DescribedApi(FastAPI):
    """A FastAPI application whose description holds the bodies it takes and the errors it answers with."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi())
        return self.openapi_schema


def complete(description: dict[str, Any]) -> dict[str, Any]:
    """Add to FastAPI's description, in place, what it cannot see; returns it."""
    kinds = list(dict.fromkeys(BODIES.values()))
    references, schemas = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template=COMPONENTS + "{model}"
    )
    components = description.setdefault("components", {}).setdefault("schemas", {})
    for name in NEVER_SENT:
        components.pop(name, None)
    components |= {**schemas["$defs"], "Error": ERROR}
    failed = {"application/json": {"schema": {"$ref": COMPONENTS + "Error"}}}
    for path, operations in description["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            answers.pop("422", None)
            answers["4XX"] = {"description": "refused, with the reason", "content": failed}
            answers["5XX"] = {"description": "cannot be served now", "content": failed}
            if path in PLAIN_TEXT:
                answers["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
            if path in STREAMING:
                answers["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
            if path in BODIES:
                body = references[BODIES[path], "validation"]
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return description
