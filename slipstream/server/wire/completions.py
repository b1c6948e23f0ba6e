"""Body of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from slipstream.request import RequestError
from slipstream.server.wire.fields import Int64, Prompt
from slipstream.server.wire.generation import NOT_SUPPORTED
from slipstream.server.wire.openai import CompletionsRequest

DEFAULT_TOKENS = 16


class CompletionRequest(CompletionsRequest):
    """`echo` puts the prompt before the text; with `max_tokens` 0 the prompt is all there is."""

    not_supported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **NOT_SUPPORTED,
        "suffix": (None, ""),
    }

    prompt: Prompt
    logprobs: Int64 | None = None
    echo: bool | None = None

    @property
    def is_echo_only(self) -> bool:
        """Nothing is to be generated; what is said of the prompt is the answer."""
        return bool(self.echo) and self.max_tokens == 0

    def output_limit(self, longest_prompt: int, max_request_tokens: int) -> int:
        """`max_tokens`, or the API's default as far as it fits."""
        if self.is_echo_only:
            return 1  # the engine always makes one; nobody sees it
        if self.max_tokens is not None:
            return self.max_tokens
        return max(min(DEFAULT_TOKENS, max_request_tokens - longest_prompt), 1)

    def num_prompt_logprobs(self) -> int | None:
        """As many as were asked for by name, or as the echo shows."""
        shown = self.logprobs if self.echo else None
        asked = [count for count in (shown, self.prompt_logprobs) if count is not None]
        return max(asked) if asked else None

    def check(self) -> None:
        """See CompletionsRequest."""
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise RequestError("max_tokens 0 makes sense with echo only; the nearest is 1", "max_tokens")
