"""Bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipstream.request import RequestError
from slipstream.server.wire.chat import ChatInput, ChatMessage
from slipstream.server.wire.fields import MAX_MESSAGES, TokenIds
from slipstream.server.wire.objects import OpenObject


class TokenizeRequest(ChatInput):
    """A `prompt`, or `messages` and what else makes a prompt of them.

    Attributes:
        add_special_tokens: put BOS before a prompt where the model wants one; False for messages.
        add_generation_prompt: end with the opening of the assistant's turn.
        return_token_strs: give the tokens as text too.
    """

    messages: Annotated[list[ChatMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] = Field(default_factory=list)
    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """Raises RequestError."""
        if (self.prompt is None) == (not self.messages):
            raise RequestError("send a prompt, or messages, and not both", "prompt")
        if self.messages and self.add_special_tokens:
            raise RequestError("the chat template writes special tokens itself; leave it out", "add_special_tokens")


class DetokenizeRequest(OpenObject):
    """Ids that stand for no token are refused."""

    model: str | None = None
    tokens: TokenIds
