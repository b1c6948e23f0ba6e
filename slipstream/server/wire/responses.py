"""Body of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from slipstream.request import OutputConstraint, RequestError
from slipstream.server.conversation import Conversation
from slipstream.server.wire.content import ROLES, Content, shown_type, text_of
from slipstream.server.wire.fields import MAX_MESSAGES, Int64
from slipstream.server.wire.generation import NOT_SUPPORTED, GenerationRequest
from slipstream.server.wire.objects import OpenObject
from slipstream.server.wire.structured import TextFormat
from slipstream.server.wire.tools import MAX_TOOLS, FunctionDefinition, ToolUse, arguments_of, tool_use

LOGPROBS_INCLUDED = "message.output_text.logprobs"


class InputItem(OpenObject):
    """A message, a function call that an earlier answer made, its output, or the reasoning of an earlier answer."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None
    summary: list[Any] | None = Field(default=None, max_length=64)
    encrypted_content: None = None


class ResponseTool(OpenObject):
    """A function, its definition beside its type."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(OpenObject):
    type: str
    name: str | None = None


class ReasoningOptions(OpenObject):
    effort: str | None = None
    summary: str | None = None


class TextOptions(OpenObject):
    format: TextFormat | None = None


class ResponsesRequest(GenerationRequest):
    """Answers are not kept, so nothing can go on from an earlier one by its id."""

    not_supported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_SUPPORTED,
        "background": (None, False),
        "conversation": (None,),
        "max_tool_calls": (None,),
        "previous_response_id": (None,),
        "prompt": (None,),
        "truncation": (None, "disabled"),
    }

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Int64 | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    top_logprobs: Int64 | None = None
    include: Annotated[list[str], Field(max_length=16)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=32)] | None = None
    thinking_token_budget: Int64 | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def constraints(self) -> list[OutputConstraint]:
        """See GenerationRequest."""
        wanted = None if self.text is None or self.text.format is None else self.text.format.constraint()
        return super().constraints() + ([] if wanted is None else [wanted])

    def num_logprobs(self) -> int | None:
        """Alternatives per token; None for no log probabilities."""
        if self.top_logprobs:
            return self.top_logprobs
        return 0 if LOGPROBS_INCLUDED in (self.include or ()) else None

    def tool_use(self) -> ToolUse:
        """Raises RequestError."""
        definitions = []
        for tool in self.tools or ():
            if tool.type != "function" or tool.name is None:
                raise RequestError(
                    f"tools: only tools of type 'function' can be called, got {shown_type(tool.type)}", "tools"
                )
            definitions.append(
                FunctionDefinition(
                    name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
                )
            )
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            choice = choice.name or choice.type
        elif choice not in (None, "none", "auto", "required"):
            raise RequestError("tool_choice must be 'none', 'auto', 'required' or name a function", "tool_choice")
        return tool_use(definitions, choice=choice or "auto", parallel=self.parallel_tool_calls is not False)

    def conversation(self) -> Conversation:
        """Raises RequestError."""
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            messages.append({"role": "user", "content": self.input})
        else:
            for index, item in enumerate(self.input):
                _add_item(messages, item, f"input[{index}]")
        effort = self.reasoning.effort if self.reasoning is not None else None
        return Conversation(messages, self.tool_use(), self.chat_template_kwargs or {}, effort)


def _add_item(messages: list[dict[str, Any]], item: InputItem, where: str) -> None:
    kind = item.type or "message"
    last = messages[-1] if messages else None
    if kind == "message":
        if item.role is None or item.content is None:
            raise RequestError(f"{where} needs a role and content", where)
        text = text_of(item.content, f"{where}.content")
        role = ROLES.get(item.role, item.role)
        if role == "assistant" and last is not None and last["role"] == "assistant" and not last["content"]:
            last["content"] = text  # what it thought before it said so
        else:
            messages.append({"role": role, "content": text})
    elif kind == "function_call":
        if not item.name or item.arguments is None:
            raise RequestError(f"{where} needs a name and arguments", where)
        function = {"name": item.name, "arguments": arguments_of(item.arguments, f"{where}.arguments")}
        call = {"id": item.call_id or item.id or "", "type": "function", "function": function}
        if last is None or last["role"] != "assistant":
            last = {"role": "assistant", "content": ""}
            messages.append(last)
        last.setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        if item.output is None:
            raise RequestError(f"{where} needs an output", where)
        text = text_of(item.output, f"{where}.output")
        messages.append({"role": "tool", "content": text, "tool_call_id": item.call_id or ""})
    elif kind == "reasoning":
        if item.content:
            text = text_of(item.content, f"{where}.content", ("reasoning_text",))
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})
    else:
        raise RequestError(f"{where}: items of type {shown_type(kind)} cannot be served", where)
