"""`/v1/completions`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta, PositionLogprobs
from slipstream.request import FinishReason, RequestError
from slipstream.server.answers import CollectedChoice, UsageCount, collect, new_id
from slipstream.server.logprobs import completion_logprobs, joined, prompt_logprobs
from slipstream.server.notes import Notes
from slipstream.server.served_model import ServedModel
from slipstream.server.service import Service
from slipstream.server.speculation_report import SpeculationReport
from slipstream.server.sse import EventStream, unless_client_gone
from slipstream.server.streams import ChunkStream, stream_answer
from slipstream.server.token_report import TokenReport
from slipstream.server.wire.completions import CompletionRequest
from slipstream.server.wire.fields import Prompt
from slipstream.server.wire.openai import MAX_CHOICES


def completion_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continue one or more prompts, given as text or as token ids."""
        body, notes = await service.read(request, CompletionRequest)
        body.check()
        model = service.model
        model.check_name(body.model)
        prompts = await _token_ids(body.prompt, model)
        sampling = body.sampling(
            max_tokens=body.output_limit(max(map(len, prompts)), model.max_request_tokens),
            logprobs=body.logprobs,
            prompt_logprobs=body.num_prompt_logprobs(),
            **body.choice_parameters(),
            constraint=body.constraint(),
            **service.restrictions(body),
        )
        if len(prompts) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts times n = {sampling.n} is more than {MAX_CHOICES} choices; send fewer", "n"
            )
        answer_id = new_id("cmpl")
        generation = await service.submit(request, answer_id, prompts, sampling, body, notes)
        envelope = {"id": answer_id, "object": "text_completion", "created": int(time.time()), "model": model.name}
        report = SpeculationReport(body, model.num_speculative_tokens)
        echoes = _Echoes(body, generation, model)
        if body.stream:
            tokens = TokenReport(body.stream_options, model.tokenizer)
            stream = _TextStream(generation, body, envelope, report, notes, echoes, tokens)
            return EventStream(stream_answer(generation, stream), generation.close)
        choices = await unless_client_gone(request, collect(generation))
        usage = UsageCount(generation).count_all()
        if body.is_echo_only:
            usage.num_output_tokens = 0
        return JSONResponse(
            {
                **envelope,
                "choices": [
                    _choice(number, choice, body, echoes) | report.of_choice(generation, number)
                    for number, choice in enumerate(choices)
                ],
                "usage": usage.as_json(),
                **report.of_answer(generation),
                **notes.as_fields(),
            }
        )

    return router


class _Echoes:
    """What choices show of their prompts."""

    def __init__(self, body: CompletionRequest, generation: Generation, model: ServedModel) -> None:
        self._body = body
        self._generation = generation
        self._decode = model.tokenizer.decode
        self._as_ids = bool(body.return_tokens_as_token_ids)

    def text(self, number: int) -> str:
        """The prompt of a choice as its client wrote it, or decoded where it sent ids; empty without echo."""
        if not self._body.echo:
            return ""
        index = number // self._generation.submissions[0].sampling.n
        prompt = self._body.prompt
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt[index], str):
            return cast("str", prompt[index])
        return self._decode(self._generation.submissions[index].prompt_token_ids)

    def token_ids(self, number: int) -> list[int]:
        index = number // self._generation.submissions[0].sampling.n
        return list(self._generation.submissions[index].prompt_token_ids)

    def logprobs(
        self,
        number: int,
        of_prompt: list[PositionLogprobs | None] | None,
        of_text: list[PositionLogprobs] | None,
    ) -> dict[str, Any] | None:
        """Of the prompt, where it is echoed and known, and of the text after it."""
        if self._body.logprobs is None:
            return None
        generated = completion_logprobs(of_text, shift=len(self.text(number)), as_ids=self._as_ids)
        if not self._body.echo or of_prompt is None:
            return generated
        first = self._decode(self.token_ids(number)[:1])
        prompt = completion_logprobs(of_prompt, first_token=first, as_ids=self._as_ids)
        return joined(prompt, generated)


def _choice(number: int, choice: CollectedChoice, body: CompletionRequest, echoes: _Echoes) -> dict[str, Any]:
    is_echo_only = body.is_echo_only
    of_text = [] if is_echo_only else choice.logprobs
    answer: dict[str, Any] = {
        "index": number,
        "text": echoes.text(number) + ("" if is_echo_only else choice.text),
        "logprobs": echoes.logprobs(number, choice.prompt_logprobs, of_text),
        "finish_reason": "length" if is_echo_only else choice.finish_reason,
        "stop_reason": None if is_echo_only else choice.stop_reason,
    }
    if body.prompt_logprobs is not None and choice.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(choice.prompt_logprobs)
    if body.return_token_ids:
        answer["token_ids"] = [] if is_echo_only else choice.token_ids
        answer["prompt_token_ids"] = echoes.token_ids(number)
    return answer


class _TextStream(ChunkStream):
    def __init__(
        self,
        generation: Generation,
        body: CompletionRequest,
        envelope: dict[str, Any],
        report: SpeculationReport,
        notes: Notes,
        echoes: _Echoes,
        tokens: TokenReport,
    ) -> None:
        super().__init__(generation, body, envelope, UsageCount(generation), report, notes, tokens)
        self._is_echo_only = body.is_echo_only
        self._echoes = echoes
        self._echoed: set[int] = set()

    def opening(self, number: int) -> None:
        """See ChunkStream."""

    def delta(self, number: int, delta: ChoiceDelta) -> Iterable[bytes]:
        """See AnswerStream."""
        if self._is_echo_only:  # what was generated was not asked for
            logprobs = None if delta.logprobs is None else list[PositionLogprobs]()
            reason = None if delta.finish_reason is None else FinishReason.LENGTH
            delta = ChoiceDelta(delta.choice_index, "", [], logprobs, reason, prompt_logprobs=delta.prompt_logprobs)
        return super().delta(number, delta)

    def choice(self, number: int, delta: ChoiceDelta) -> tuple[dict[str, Any], bool]:
        """See ChunkStream."""
        text = delta.text
        is_first = number not in self._echoed
        if is_first:
            self._echoed.add(number)
            text = self._echoes.text(number) + text
        choice = {
            "index": number,
            "text": text,
            "logprobs": self._echoes.logprobs(number, delta.prompt_logprobs, delta.logprobs),
            "finish_reason": None if delta.finish_reason is None else delta.finish_reason.value,
            "stop_reason": delta.stop_reason,
        }
        if is_first and self._body.return_token_ids:
            choice["prompt_token_ids"] = self._echoes.token_ids(number)
        return choice, bool(text)


async def _token_ids(prompt: Prompt, model: ServedModel) -> list[list[int]]:
    """Prompts in all four shapes the API allows, as token ids."""
    if not prompt and not isinstance(prompt, str):
        raise RequestError("prompt is an empty list; at least one prompt is needed", "prompt")
    prompts: list[str] | list[list[int]]
    if isinstance(prompt, str):
        prompts = [prompt]
    else:  # the body's check leaves items of one type
        prompts = cast("list[str] | list[list[int]]", [prompt] if isinstance(prompt[0], int) else prompt)
    encoded = []
    for item in prompts:
        if isinstance(item, str):
            token_ids = await model.encode(item, add_special_tokens=True)
            await asyncio.sleep(0)  # other requests have their turn between short texts
        else:
            token_ids = item
        model.check_length(len(token_ids))
        encoded.append(token_ids)
    return encoded
