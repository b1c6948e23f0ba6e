"""A model's chat template: Jinja from a stranger's file, so it runs in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.models.chat_format import ChatFormat
from slipstream.models.config import ModelLoadError
from slipstream.request import RequestError

MAX_PROMPT_CHARACTERS = 1 << 24
_MAX_REPEATED = 1 << 20
_MAX_POWER_BITS = 1 << 12


class ChatTemplate:
    """Messages to prompt text, as transformers' `apply_chat_template` does it.

    Attributes:
        format: how the model thinks and calls tools, as far as the template shows it.

    Raises:
        ModelLoadError: from the constructor, when the template is not valid Jinja.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.format = ChatFormat.of(source)
        self._special_tokens = dict(special_tokens or {})
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the chat template is not valid Jinja, line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, SyntaxError) as error:
            raise ModelLoadError(f"the chat template cannot be compiled ({error})") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt for a conversation.

        Args:
            messages: objects with at least `role` and `content`.
            add_generation_prompt: end with the opening of the assistant's turn.
            extra: further variables the template may read, such as `tools`.

        Raises:
            RequestError: the template refuses the messages, fails on them, or writes without end.
        """
        # Templates ask `tools is not none`, so what was not given is None and not undefined, as in transformers.
        variables = self._special_tokens | {"tools": None, "documents": None} | extra
        variables |= {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(**variables):
                parts.append(part)
                length += len(part)
                if length > MAX_PROMPT_CHARACTERS:
                    raise RequestError(
                        f"the model's chat template wrote more than {MAX_PROMPT_CHARACTERS} characters", "messages"
                    )
        except RequestError:
            raise
        except Exception as error:
            reason = getattr(error, "message", None) or str(error) or type(error).__name__
            raise RequestError(f"the model's chat template refuses these messages: {reason}", "messages") from error
        return "".join(parts)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox limits `range` but not what `*` and `**` can build."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        whole = isinstance(left, int) and isinstance(right, int)
        if operator == "**" and whole and left.bit_length() * right > _MAX_POWER_BITS:
            raise jinja2.TemplateRuntimeError("a power is too large")
        if operator == "*":
            for items, times in ((left, right), (right, left)):
                if hasattr(items, "__len__") and isinstance(times, int) and len(items) * times > _MAX_REPEATED:
                    raise jinja2.TemplateRuntimeError(f"repeating {times} times is too much")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
