"""Body of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from slipstream.request import RequestError
from slipstream.server.conversation import Conversation
from slipstream.server.wire.content import ROLES, Content, text_of
from slipstream.server.wire.fields import MAX_MESSAGES, Int64
from slipstream.server.wire.generation import NOT_SUPPORTED
from slipstream.server.wire.objects import OpenObject
from slipstream.server.wire.openai import CompletionsRequest
from slipstream.server.wire.tools import MAX_TOOLS, ChatTool, ToolUse, arguments_of, tool_use

MAX_CALLS = 128
MAX_VARIABLES = 32


class CalledFunction(OpenObject):
    """`arguments` is JSON text."""

    name: str
    arguments: str | None = None


class ToolCall(OpenObject):
    """A call that an earlier answer made, as clients send it back."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ChatMessage(OpenObject):
    """One message. What assistant messages may hold beside text is taken where it is empty."""

    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)
    audio: None = None
    function_call: None = None

    def for_template(self, index: int) -> dict[str, Any]:
        """The message as chat templates read it. Raises RequestError."""
        where = f"messages[{index}]"
        if self.content is None and not self.tool_calls:
            raise RequestError(f"{where}.content is missing", f"{where}.content")
        message: dict[str, Any] = {
            "role": ROLES.get(self.role, self.role),
            "content": "" if self.content is None else text_of(self.content, f"{where}.content"),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        reasoning = self.reasoning_content or self.reasoning
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or "",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": arguments_of(
                            call.function.arguments or "", f"{where}.tool_calls[{number}].function.arguments"
                        ),
                    },
                }
                for number, call in enumerate(self.tool_calls)
            ]
        return message


class NamedFunction(OpenObject):
    name: str


class NamedTool(OpenObject):
    """`tool_choice` that names a function."""

    type: str
    function: NamedFunction


class ChatInput(OpenObject):
    """What makes a prompt of a conversation; `/tokenize` takes it too."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES)] | None = None
    reasoning_effort: str | None = None

    def tool_use(self) -> ToolUse:
        """Raises RequestError."""
        tools = self.tools or []
        for tool in tools:
            if tool.type != "function" or tool.function is None:
                raise RequestError(f"tools: only tools of type 'function' can be called, got {tool.type!r}", "tools")
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            choice = choice.function.name
        elif choice not in (None, "none", "auto", "required"):
            raise RequestError("tool_choice must be 'none', 'auto', 'required' or name a function", "tool_choice")
        return tool_use(
            [tool.function for tool in tools if tool.function is not None],
            choice=choice or "auto",
            parallel=self.parallel_tool_calls is not False,
        )

    def conversation(self) -> Conversation:
        """Raises RequestError."""
        return Conversation(
            [message.for_template(index) for index, message in enumerate(self.messages)],
            self.tool_use(),
            self.chat_template_kwargs or {},
            self.reasoning_effort,
        )


class ChatRequest(ChatInput, CompletionsRequest):
    """`include_reasoning` False leaves the reasoning out of the answer."""

    not_supported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_SUPPORTED,
        "audio": (None,),
        "chat_template": (None,),
        "documents": (None, []),
        "function_call": (None, "none"),
        "functions": (None, []),
        "metadata": (None, {}),
        "modalities": (None, ["text"]),
        "verbosity": (None,),
        "web_search_options": (None,),
        "echo": (None, False),
        "add_generation_prompt": (None, True),
        "continue_final_message": (None, False),
    }

    max_completion_tokens: Int64 | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Int64 | None = None

    def output_limit(self) -> int | None:
        """Most output tokens asked for; None is up to the model's limit."""
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise RequestError(f"max_tokens is {old} and max_completion_tokens {new}; send one of them", "max_tokens")
        return new if new is not None else old

    def num_logprobs(self) -> int | None:
        """Alternatives per token; None for no log probabilities."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs is not None:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
        return None
