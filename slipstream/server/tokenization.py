"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from slipstream.request import RequestError
from slipstream.server.service import Service
from slipstream.server.wire.tokens import DetokenizeRequest, TokenizeRequest


def tokenization_routes(service: Service) -> APIRouter:
    router = APIRouter()
    model = service.model

    @router.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        """Token ids of a prompt or of a conversation."""
        body, notes = await service.read(request, TokenizeRequest)
        body.check()
        model.check_name(body.model)
        if body.prompt is not None:
            tokens = await model.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
        else:
            opens_turn = body.add_generation_prompt is not False
            tokens, _ = await model.encode_chat(body.conversation(), opens_turn=opens_turn)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": model.max_request_tokens,
            "tokens": tokens,
            "token_strs": None,
            **notes.as_fields(),
        }
        if body.return_token_strs:
            answer["token_strs"] = [model.tokenizer.id_to_token(token) or "" for token in tokens]
        return answer

    @router.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        """Text of token ids, special tokens written out."""
        body, notes = await service.read(request, DetokenizeRequest)
        model.check_name(body.model)
        model.check_length(len(body.tokens))
        for position, token in enumerate(body.tokens):
            if token < 0 or model.tokenizer.id_to_token(token) is None:
                raise RequestError(f"tokens[{position}] is {token}, which is no token of this model", "tokens")
        text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text, **notes.as_fields()}

    return router
