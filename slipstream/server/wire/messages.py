"""Body of `/v1/messages`, in the form of Anthropic's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from slipstream.request import RequestError
from slipstream.server.conversation import Conversation
from slipstream.server.wire.content import shown_type
from slipstream.server.wire.fields import MAX_CONTENT_PARTS, MAX_MESSAGES, Int64, Stop
from slipstream.server.wire.generation import NOT_SUPPORTED, GenerationRequest
from slipstream.server.wire.objects import OpenObject
from slipstream.server.wire.tools import MAX_TOOLS, FunctionDefinition, ToolUse, tool_use


class InnerBlock(OpenObject):
    """A block of a tool's result, or of the system prompt."""

    type: str
    text: str | None = None
    cache_control: dict[str, Any] | None = None


InnerBlocks = str | Annotated[list[InnerBlock], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)]


class Block(OpenObject):
    """A content block of a message. `cache_control` asks for what the prefix cache does anyway."""

    type: str
    text: str | None = None
    citations: list[Any] | None = Field(default=None, max_length=0)
    cache_control: dict[str, Any] | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: InnerBlocks | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Message(OpenObject):
    role: str
    content: str | Annotated[list[Block], Field(max_length=MAX_CONTENT_PARTS, fail_fast=True)]


class Tool(OpenObject):
    """A function; `type` is left out, or `custom`."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(OpenObject):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(OpenObject):
    """`budget_tokens` bounds the reasoning."""

    type: str
    budget_tokens: Int64 | None = None
    display: str | None = None


class Metadata(OpenObject):
    user_id: str | None = None


class MessagesInput(OpenObject):
    """What makes a prompt; `/v1/messages/count_tokens` takes it too."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: InnerBlocks | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None

    @property
    def thinks(self) -> bool | None:
        """Whether the model is told to think; None leaves it to its template."""
        return None if self.thinking is None else self.thinking.type != "disabled"

    def tool_use(self) -> ToolUse:
        """Raises RequestError."""
        definitions = []
        for tool in self.tools or ():
            if tool.type not in (None, "custom"):
                raise RequestError(
                    f"tools: only tools that the client runs can be called, got type {shown_type(tool.type)}", "tools"
                )
            definitions.append(
                FunctionDefinition(
                    name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
                )
            )
        choice = self.tool_choice
        kind = "auto" if choice is None else choice.type
        names = {"auto": "auto", "none": "none", "any": "required", "tool": (choice and choice.name) or ""}
        if kind not in names:
            raise RequestError(
                f"tool_choice.type must be 'auto', 'any', 'tool' or 'none', got {shown_type(kind)}", "tool_choice"
            )
        parallel = choice is None or not choice.disable_parallel_tool_use
        return tool_use(definitions, choice=names[kind], parallel=parallel)

    def conversation(self) -> Conversation:
        """Raises RequestError."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _inner_text(self.system, "system")})
        for index, message in enumerate(self.messages):
            messages += _for_template(message, f"messages[{index}]")
        if self.thinking is not None and self.thinking.type not in ("enabled", "disabled", "adaptive"):
            raise RequestError(
                f"thinking.type must be 'enabled', 'adaptive' or 'disabled', got {shown_type(self.thinking.type)}",
                "thinking",
            )
        return Conversation(messages, self.tool_use(), thinks=self.thinks)


class CountRequest(MessagesInput):
    """Body of `/v1/messages/count_tokens`."""


class MessagesRequest(MessagesInput, GenerationRequest):
    """Body of `/v1/messages`."""

    not_supported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_SUPPORTED,
        "container": (None,),
        "context_management": (None,),
        "mcp_servers": (None, []),
        "output_config": (None, {}),
        "output_format": (None,),
    }

    max_tokens: Int64
    stop_sequences: Stop | None = None
    metadata: Metadata | None = None

    def stop(self) -> tuple[str, ...]:
        """Stop strings as SamplingParams takes them."""
        stop = self.stop_sequences
        return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _inner_text(content: InnerBlocks | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for block in content:
        if block.type != "text" or block.text is None:
            raise RequestError(
                f"{where}: only blocks of type 'text' can be served, got {shown_type(block.type)}", where
            )
    return "".join(block.text or "" for block in content)


def _for_template(message: Message, where: str) -> list[dict[str, Any]]:
    """The message as chat templates read it: results of tools become messages of their own, before its text."""
    if message.role not in ("user", "assistant", "system"):
        place = f"{where}.role"
        raise RequestError(f"{place} must be 'user' or 'assistant', got {shown_type(message.role)}", place)
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for number, block in enumerate(message.content):
        place = f"{where}.content[{number}]"
        match block.type:
            case "text" if block.text is not None:
                texts.append(block.text)
            case "tool_use" if block.name and message.role == "assistant":
                function = {"name": block.name, "arguments": block.input or {}}
                calls.append({"id": block.id or "", "type": "function", "function": function})
            case "tool_result" if message.role == "user":
                text = _inner_text(block.content, place)
                results.append({"role": "tool", "content": text, "tool_call_id": block.tool_use_id or ""})
            case "thinking" if message.role == "assistant":
                thoughts.append(block.thinking or "")
            case "redacted_thinking" if message.role == "assistant":
                pass  # nobody but its author could read it
            case kind:
                raise RequestError(
                    f"{place}: blocks of type {shown_type(kind)} cannot be served in a message of "
                    f"{message.role!r}; text can",
                    place,
                )
    if not texts and not calls and not thoughts:
        return results
    own: dict[str, Any] = {"role": message.role, "content": "".join(texts)}
    if calls:
        own["tool_calls"] = calls
    if thoughts:
        own["reasoning_content"] = "".join(thoughts)
    return [*results, own]
