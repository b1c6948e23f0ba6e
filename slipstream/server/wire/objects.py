"""OpenObject: a JSON object of a request. What it does not know is kept, so that it can be named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from slipstream.server.wire.fields import shortened

MAX_UNKNOWN = 64
MAX_NAME = 256


class OpenObject(BaseModel):
    """Values are taken as they are, never converted. At most MAX_UNKNOWN fields that it does not know, whose names have
    at most MAX_NAME characters."""

    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _limit_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name in value:
            if len(name) > MAX_NAME:
                raise PydanticCustomError("unknown_field", "has no field {name}", {"name": repr(shortened(name))})
        if len(value) > MAX_UNKNOWN:
            unknown = [name for name in value if name not in cls.model_fields]
            if len(unknown) > MAX_UNKNOWN:
                raise PydanticCustomError(
                    "unknown_field",
                    "has more than {most} unknown fields, one of them {name}",
                    {"most": MAX_UNKNOWN, "name": repr(shortened(unknown[0]))},
                )
        return value


def unknown_fields(value: OpenObject, where: str = "") -> Iterator[tuple[str, str, OpenObject]]:
    """(path of the object, name, the object) of every field that is not known, of objects inside of it too."""
    for name in value.model_extra or ():
        yield where, name, value
    for name in type(value).model_fields:
        child = getattr(value, name)
        path = f"{where}.{name}" if where else name
        if isinstance(child, OpenObject):
            yield from unknown_fields(child, path)
        elif isinstance(child, list) and child and isinstance(child[0], OpenObject):
            for index, item in enumerate(child):
                if isinstance(item, OpenObject):
                    yield from unknown_fields(item, f"{path}[{index}]")
