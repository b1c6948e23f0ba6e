"""What goes between the benchmark and a system that it measures: one JSON object per line, in both directions.

The first line to a system is a Setup, and it answers with Loaded; each further line is a Job, answered with a Result.
Only the standard library is used: peers have environments of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


class Message:
    """A data class that travels as one line of JSON."""

    def to_line(self) -> str:
        """Without line breaks inside."""
        return json.dumps(asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Raises ValueError for what is no such object."""
        values = json.loads(line)
        if not isinstance(values, dict):
            raise ValueError(f"expected an object of {cls.__name__}, got {line[:80]!r}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"no {cls.__name__}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Setup(Message):
    """What a system loads, and for which load.

    Attributes:
        model: as `slipstream serve` takes it. gguf: its GGUF file; empty where there is none. folder: a Hugging Face
            folder with its weights in bfloat16.
        dtype: bfloat16 or float32, for systems that do not decide it themselves.
        num_threads: CPU threads.
        max_num_seqs: most requests at once in any job. max_model_len: most tokens of any request, its answer included.
        kv_tokens: most tokens of all requests at once in any job.
        eos_token_ids: tokens that end a text.
    """

    model: str
    gguf: str
    folder: str
    dtype: str
    num_threads: int
    max_num_seqs: int
    max_model_len: int
    kv_tokens: int
    eos_token_ids: list[int]


@dataclass(frozen=True, kw_only=True)
class Loaded(Message):
    """A system that is ready.

    Attributes:
        load_s: seconds to load the model, its packages imported before where that can be told apart.
        resident_bytes: memory of its processes then; None where not known.
        versions: package -> version. details: what else the system says of itself.
    """

    load_s: float
    resident_bytes: int | None
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job(Message):
    """Prompts to answer.

    Attributes:
        prompts: token ids, the chat template applied. Each is served once; the next begins when one has ended.
        concurrency: most at a time.
        ignore_eos: every answer has `max_new_tokens`.
        temperature: 0 is greedy; otherwise draws are from the whole vocabulary.
    """

    name: str
    prompts: list[list[int]]
    max_new_tokens: int
    concurrency: int
    ignore_eos: bool
    temperature: float = 0.0

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request with its answer."""
        return max(map(len, self.prompts)) + self.max_new_tokens

    @property
    def kv_tokens(self) -> int:
        """Most tokens of all requests at once."""
        longest = sorted((len(prompt) + self.max_new_tokens for prompt in self.prompts), reverse=True)
        return sum(longest[: self.concurrency])


@dataclass(frozen=True, kw_only=True)
class Result(Message):
    """A job done.

    Attributes:
        seconds: from the first prompt in to the last token out.
        num_prompt_tokens: of all prompts. token_ids: each prompt's answer, without what ended it where EOS counts.
        resident_bytes: memory of its processes afterwards. kv_bytes: of it, what is set apart for keys and values, in
            use or not. None where not known.
        acceptance_length: mean tokens of a decode step; None for a system that does not draft.
    """

    seconds: float
    num_prompt_tokens: int
    token_ids: list[list[int]]
    resident_bytes: int | None = None
    kv_bytes: int | None = None
    acceptance_length: float | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens."""
        return sum(map(len, self.token_ids))

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, the prompts' time included."""
        return self.num_tokens / self.seconds

    @property
    def prompt_tokens_per_s(self) -> float:
        """Prompt tokens per second: prefill speed where answers are one token."""
        return self.num_prompt_tokens / self.seconds
