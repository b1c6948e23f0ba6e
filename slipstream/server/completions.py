"""`/v1/completions`."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.request import RequestError
from slipstream.server.answers import ChunkWriter, UsageCount, collect, new_id, stream_chunks
from slipstream.server.body import read_request
from slipstream.server.fields import Prompt
from slipstream.server.logprobs import completion_logprobs
from slipstream.server.protocol import DEFAULT_COMPLETION_TOKENS, MAX_CHOICES, CompletionRequest
from slipstream.server.served_model import ServedModel
from slipstream.server.sse import EventStream, unless_client_gone


def completion_routes(engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continue one or more prompts, given as text or as token ids."""
        body = await read_request(request, CompletionRequest)
        model.check_name(body.model)
        prompts = await _token_ids(body.prompt, model)
        sampling = body.sampling(max_tokens=_output_limit(body, prompts, model), logprobs=body.logprobs)
        if len(prompts) * sampling.n > MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts times n = {sampling.n} is more than {MAX_CHOICES} choices; send fewer", "n"
            )
        answer_id = new_id("cmpl")
        generation = await unless_client_gone(
            request,
            engine.submit(answer_id, prompts, sampling, priority=body.priority or 0, cache_salt=body.cache_salt or ""),
        )
        envelope = {"id": answer_id, "object": "text_completion", "created": int(time.time()), "model": model.name}
        if body.stream:
            return EventStream(stream_chunks(generation, body, envelope, _Chunks()), generation.close)
        choices = await unless_client_gone(request, collect(generation))
        wanted = sampling.logprobs is not None
        return JSONResponse(
            {
                **envelope,
                "choices": [
                    _choice(
                        number,
                        choice.text,
                        completion_logprobs(choice.logprobs if wanted else None),
                        choice.finish_reason,
                        choice.stop_reason,
                    )
                    for number, choice in enumerate(choices)
                ],
                "usage": UsageCount.of_finished(generation),
            }
        )

    return router


class _Chunks(ChunkWriter):
    def opening(self, number: int) -> None:
        return None

    def choice(self, number: int, delta: ChoiceDelta) -> dict[str, Any]:
        reason = delta.finish_reason.value if delta.finish_reason is not None else None
        return _choice(number, delta.text, completion_logprobs(delta.logprobs), reason, delta.stop_reason)


def _choice(
    number: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None, stop_reason: int | str | None
) -> dict[str, Any]:
    return {
        "index": number,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }


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


def _output_limit(body: CompletionRequest, prompts: list[list[int]], model: ServedModel) -> int:
    """`max_tokens`, or the API's default as far as it fits."""
    if body.max_tokens is not None:
        return body.max_tokens
    room = model.max_request_tokens - max(map(len, prompts))
    return max(min(DEFAULT_COMPLETION_TOKENS, room), 1)
