"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.server.answers import ChunkWriter, UsageCount, collect, new_id, stream_chunks
from slipstream.server.body import read_request
from slipstream.server.logprobs import chat_logprobs
from slipstream.server.protocol import ChatMessage, ChatRequest
from slipstream.server.served_model import ServedModel
from slipstream.server.sse import EventStream, unless_client_gone


def chat_routes(engine: AsyncEngine, model: ServedModel) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_request(request, ChatRequest)
        model.check_name(body.model)
        sampling = body.sampling(max_tokens=body.output_limit(), logprobs=body.num_logprobs())
        prompt = await model.encode_chat([_message(index, item) for index, item in enumerate(body.messages)])
        answer_id = new_id("chatcmpl")
        generation = await unless_client_gone(
            request,
            engine.submit(answer_id, [prompt], sampling, priority=body.priority or 0, cache_salt=body.cache_salt or ""),
        )
        envelope = {"id": answer_id, "created": int(time.time()), "model": model.name}
        if body.stream:
            envelope["object"] = "chat.completion.chunk"
            return EventStream(stream_chunks(generation, body, envelope, _Chunks()), generation.close)
        choices = await unless_client_gone(request, collect(generation))
        return JSONResponse(
            {
                **envelope,
                "object": "chat.completion",
                "choices": [
                    {
                        "index": number,
                        "message": {"role": "assistant", "content": choice.text, "refusal": None},
                        "logprobs": chat_logprobs(choice.logprobs) if sampling.logprobs is not None else None,
                        "finish_reason": choice.finish_reason,
                        "stop_reason": choice.stop_reason,
                    }
                    for number, choice in enumerate(choices)
                ],
                "usage": UsageCount.of_finished(generation),
            }
        )

    return router


class _Chunks(ChunkWriter):
    def opening(self, number: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, number: int, delta: ChoiceDelta) -> dict[str, Any]:
        choice = {
            "index": number,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": chat_logprobs(delta.logprobs),
            "finish_reason": None,
        }
        if delta.finish_reason is not None:
            choice |= {"finish_reason": delta.finish_reason.value, "stop_reason": delta.stop_reason}
        return choice


def _message(index: int, message: ChatMessage) -> dict[str, Any]:
    rendered = {"role": message.role, "content": message.text(index)}
    if message.name is not None:
        rendered["name"] = message.name
    return rendered
