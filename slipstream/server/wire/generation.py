"""What every route that generates takes, whatever else it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from slipstream.request import OutputConstraint, SamplingParams
from slipstream.server.wire.fields import (
    BadWords,
    Int32,
    Int64,
    LogitBias,
    Priority,
    Seed,
    StopTokenIds,
)
from slipstream.server.wire.objects import OpenObject
from slipstream.server.wire.structured import Choices, Schema, StructuredOutputs, only_one, stated_constraints

# Parameters of other servers that this one cannot serve, with the values that ask for nothing.
NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "early_stopping": (None, False),
    "length_penalty": (None, 1.0),
    "logits_processors": (None, []),
    "prediction": (None,),
    "repetition_detection": (None,),
    "service_tier": (None, "auto", "default", "standard_only"),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "store": (None, False),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}

_PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "include_stop_str_in_output",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)
_LISTS = ("stop_token_ids", "allowed_token_ids")


class SpeculativeOptions(OpenObject):
    """`speculative`: how this request is drafted for, and how much is said of it.

    Attributes:
        enabled: False makes no drafts.
        num_speculative_tokens: drafts per step at most.
        metrics: what `metrics.speculative_decoding` of the answer holds; the default is `summary`.
    """

    enabled: bool | None = None
    num_speculative_tokens: Int32 | None = None
    metrics: Literal["none", "summary", "detailed"] | None = None


class GenerationRequest(OpenObject):
    """Meanings are those of SamplingParams. `null` is the default everywhere.

    `priority`: lower is served first, from -100 to 100; a level is worth `priority_ageing_s` of waiting.
    """

    not_supported: ClassVar[Mapping[str, tuple[Any, ...]]] = NOT_SUPPORTED

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    seed: Seed | None = None
    min_tokens: Int64 | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    logit_bias: LogitBias = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    allowed_token_ids: StopTokenIds | None = None
    bad_words: BadWords | None = None
    stream: bool | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = None
    speculative: SpeculativeOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    def constraint(self) -> OutputConstraint | None:
        """What the output must be; None for anything. Raises RequestError."""
        return only_one(self.constraints())

    def constraints(self) -> list[OutputConstraint]:
        """One per field that asks for one; `guided_*` are the older names of vLLM's. Raises RequestError."""
        found = [] if self.structured_outputs is None else self.structured_outputs.constraints()
        found += stated_constraints("guided_json", self.guided_json, None, None, None)
        found += stated_constraints("guided_regex", None, self.guided_regex, None, None)
        found += stated_constraints("guided_choice", None, None, self.guided_choice, None)
        return found + stated_constraints("guided_grammar", None, None, None, self.guided_grammar)

    def sampling(self, **more: Any) -> SamplingParams:
        """The parameters for the engine; `more` are those that a route names otherwise, or works out.

        Raises RequestError for values outside their range.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in _PLAIN}
        for name in _LISTS:
            value = getattr(self, name)
            given[name] = None if value is None else tuple(value)
        known = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**known, **more)
