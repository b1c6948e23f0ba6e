"""Fields that say what an output must be, in OpenAI's words and in vLLM's."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from slipstream.request import ConstraintKind, OutputConstraint, RequestError
from slipstream.server.wire.fields import shortened
from slipstream.server.wire.objects import OpenObject

MAX_CHOICES_OFFERED = 1024

Schema = dict[str, Any] | bool
Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES_OFFERED, fail_fast=True)]
ANY_OBJECT: Schema = {"type": "object"}


class JsonSchema(OpenObject):
    """`response_format.json_schema`. The schema is held to whether `strict` or not."""

    name: str | None = None
    description: str | None = None
    definition: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(OpenObject):
    """`response_format`."""

    type: str
    json_schema: JsonSchema | None = None

    def constraint(self) -> OutputConstraint | None:
        """Raises RequestError."""
        definition = None if self.json_schema is None else self.json_schema.definition
        return format_constraint(self.type, definition, "response_format", "response_format.json_schema.schema")


class TextFormat(OpenObject):
    """`text.format` of `/v1/responses`."""

    type: str
    name: str | None = None
    description: str | None = None
    definition: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def constraint(self) -> OutputConstraint | None:
        """Raises RequestError."""
        return format_constraint(self.type, self.definition, "text.format", "text.format.schema")


class StructuredOutputs(OpenObject):
    """vLLM's `structured_outputs`: one of these."""

    json_definition: Schema | str | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None

    def constraints(self) -> list[OutputConstraint]:
        """Every one that is given. Raises RequestError."""
        for name in self.model_extra or ():
            raise RequestError(
                f"structured_outputs.{shortened(name)} is not supported by this server; json, json_object, regex, "
                "choice and grammar are",
                "structured_outputs",
                "unsupported_parameter",
            )
        where = "structured_outputs"
        given = stated_constraints(where, self.json_definition, self.regex, self.choice, self.grammar)
        if self.json_object:
            given.append(json_constraint(ANY_OBJECT, where))
        if len(given) != 1:
            raise RequestError(
                f"structured_outputs must have exactly one of json, json_object, regex, choice and grammar, got "
                f"{len(given)}",
                where,
            )
        return given


def stated_constraints(
    parameter: str, schema: Schema | str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> list[OutputConstraint]:
    """One per argument that is given."""
    found = [] if schema is None else [json_constraint(schema, parameter)]
    for kind, text in ((ConstraintKind.REGEX, regex), (ConstraintKind.GRAMMAR, grammar)):
        if text is not None:
            found.append(OutputConstraint(kind, text, parameter))
    if choice is not None:
        found.append(OutputConstraint(ConstraintKind.CHOICE, json.dumps(choice, ensure_ascii=False), parameter))
    return found


def json_constraint(schema: Schema | str, parameter: str) -> OutputConstraint:
    """A JSON schema, also one that is written out."""
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return OutputConstraint(ConstraintKind.JSON_SCHEMA, text, parameter)


def format_constraint(kind: str, schema: Schema | None, parameter: str, schema_path: str) -> OutputConstraint | None:
    """What OpenAI's format of this type asks for; None for text. Raises RequestError."""
    if kind == "text":
        return None
    if kind == "json_object":
        return json_constraint(ANY_OBJECT, parameter)
    if kind == "json_schema":
        if schema is None:
            raise RequestError(f"{schema_path} is missing; type 'json_schema' needs it", parameter)
        return json_constraint(schema, parameter)
    raise RequestError(
        f"{parameter}.type must be 'text', 'json_object' or 'json_schema', got {shortened(kind)!r}",
        parameter,
        "unsupported_parameter",
    )


def only_one(constraints: list[OutputConstraint]) -> OutputConstraint | None:
    """Raises RequestError where an output is asked to be two things."""
    if len(constraints) > 1:
        names = " and ".join(dict.fromkeys(constraint.parameter for constraint in constraints))
        raise RequestError(
            f"{names} ask for {len(constraints)} forms of one output; send one", constraints[1].parameter
        )
    return constraints[0] if constraints else None
