"""`/v1/messages` and `/v1/messages/count_tokens`, in the form of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.server.answers import ReasoningCount, UsageCount, collect, new_id
from slipstream.server.assistant_text import AssistantReader
from slipstream.server.constraints import answer_constraint
from slipstream.server.errors import SERVER_ERROR
from slipstream.server.notes import Notes, check_tools
from slipstream.server.output_items import ItemChange, ItemKind, OutputItem, OutputItems
from slipstream.server.service import Service
from slipstream.server.speculation_report import SpeculationReport
from slipstream.server.sse import EventStream, named_event, unless_client_gone
from slipstream.server.streams import stream_answer
from slipstream.server.wire.messages import CountRequest, MessagesInput, MessagesRequest

PREFIXES = {ItemKind.REASONING: "think", ItemKind.TEXT: "text", ItemKind.CALL: "toolu"}


def message_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/messages")
    async def messages(request: Request) -> Response:
        """Answer a conversation."""
        body, notes = await service.read(request, MessagesRequest)
        model = service.model
        model.check_name(body.model)
        conversation = body.conversation()
        check_tools(conversation.tools, notes)
        check_thinking(body, service, notes)
        prompt, written = await model.encode_chat(conversation)
        budget = body.thinking.budget_tokens if body.thinking is not None and body.thinks and model.can_reason else None
        sampling = body.sampling(
            max_tokens=body.max_tokens,
            logprobs=None,
            stop=body.stop(),
            thinking=model.thinking_budget(budget, written, "thinking"),
            constraint=answer_constraint(body.constraint(), written, model),
            **service.restrictions(body),
        )
        answer_id = new_id("msg", "_")
        generation = await service.submit(request, answer_id, [prompt], sampling, body, notes)
        report = SpeculationReport(body, model.num_speculative_tokens)
        counts = model.reasoning_counts(written, 1)
        answer = _Answer(answer_id, model.name, generation, report, notes, counts, written.reader())
        if body.stream:
            return EventStream(stream_answer(generation, _MessageStream(answer)), generation.close)
        (choice,) = await unless_client_gone(request, collect(generation))
        if counts:
            counts[0].add(choice.token_ids)
        for _ in answer.read(choice.text, is_last=True):
            pass
        return JSONResponse(answer.as_json(choice.finish_reason, choice.stop_reason))

    @router.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> dict[str, Any]:
        """How many tokens the prompt of a conversation has."""
        body, notes = await service.read(request, CountRequest)
        service.model.check_name(body.model)
        prompt, _ = await service.model.encode_chat(body.conversation())
        return {"input_tokens": len(prompt), **notes.as_fields()}

    return router


def check_thinking(body: MessagesInput, service: Service, notes: Notes) -> None:
    """Note that a model which does not reason was asked to."""
    if body.thinks and not service.model.can_reason:
        notes.add("thinking: this model does not reason before it answers", "thinking", "unsupported_parameter")


class _Answer:
    """The message while it grows."""

    def __init__(
        self,
        answer_id: str,
        model_name: str,
        generation: Generation,
        report: SpeculationReport,
        notes: Notes,
        counts: list[ReasoningCount],
        reader: AssistantReader,
    ) -> None:
        self.counts = counts
        self.items = OutputItems(PREFIXES)
        self.usage = UsageCount(generation, counts)
        self._id = answer_id
        self._model_name = model_name
        self._generation = generation
        self._report = report
        self._notes = notes
        self._reader = reader

    def read(self, text: str, *, is_last: bool) -> Iterable[ItemChange]:
        """What a piece of the model's text changes; the last one closes everything."""
        yield from self.items.add(self._reader.read(text, is_last=is_last))
        if is_last:
            yield from self.items.close()

    def as_json(self, finish_reason: str | None, stop_reason: int | str | None) -> dict[str, Any]:
        """The whole message; without a finish reason it has just begun."""
        has_ended = finish_reason is not None
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model_name,
            "content": [block_json(item) for item in self.items.items],
            **self.ending(finish_reason, stop_reason),
            "usage": self.usage_json(),
            **(self.metrics() if has_ended else {}),
            **self._notes.as_fields(),
        }

    def ending(self, finish_reason: str | None, stop_reason: int | str | None) -> dict[str, Any]:
        """`stop_reason` in Anthropic's words, and `stop_sequence`."""
        by_string = finish_reason == "stop" and isinstance(stop_reason, str)
        reason = None
        if finish_reason == "length":
            reason = "max_tokens"
        elif by_string:
            reason = "stop_sequence"
        elif finish_reason is not None:
            reason = "tool_use" if self._reader.num_calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop_reason if by_string else None}

    def usage_json(self) -> dict[str, Any]:
        """Tokens so far; the prompt's are those that were computed and those from the cache."""
        usage = self.usage.count_all()
        return {
            "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.num_output_tokens,
        }

    def metrics(self) -> dict[str, Any]:
        return self._report.of_answer(self._generation)


def block_json(item: OutputItem, *, is_open: bool = False) -> dict[str, Any]:
    """A content block; an open one is still empty."""
    text = "" if is_open else item.text
    match item.kind:
        case ItemKind.REASONING:
            return {"type": "thinking", "thinking": text, "signature": ""}
        case ItemKind.TEXT:
            return {"type": "text", "text": text}
        case ItemKind.CALL:
            return {"type": "tool_use", "id": item.item_id, "name": item.name, "input": _object(text)}


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object; what is none (a cut answer, a model's slip) as far as JSON has a place for it."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"raw_arguments": text}
    return value if isinstance(value, dict) else {"raw_arguments": text}


class _MessageStream:
    """An AnswerStream of Anthropic's events."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def begin(self) -> Iterable[bytes]:
        """See AnswerStream."""
        yield _event("message_start", message=self._answer.as_json(None, None))
        yield _event("ping")

    def delta(self, number: int, delta: ChoiceDelta) -> Iterable[bytes]:
        """See AnswerStream."""
        answer = self._answer
        if answer.counts:
            answer.counts[0].add(delta.token_ids)
        reason = None if delta.finish_reason is None else delta.finish_reason.value
        for change in answer.read(delta.text, is_last=reason is not None):
            yield from self._of_change(change)
        if reason is not None:
            ending = answer.ending(reason, delta.stop_reason)
            yield _event("message_delta", delta=ending, usage=answer.usage_json(), **answer.metrics())
            yield _event("message_stop")

    def end(self) -> Iterable[bytes]:
        """See AnswerStream."""
        return ()

    def failed(self, message: str) -> Iterable[bytes]:
        """See AnswerStream."""
        error = {"type": "api_error", "message": message, "param": None, "code": SERVER_ERROR}
        yield _event("error", error=error)

    @staticmethod
    def _of_change(change: ItemChange) -> Iterable[bytes]:
        item = change.item
        if change.opens:
            yield _event("content_block_start", index=item.index, content_block=block_json(item, is_open=True))
        if change.added:
            match item.kind:
                case ItemKind.REASONING:
                    delta = {"type": "thinking_delta", "thinking": change.added}
                case ItemKind.TEXT:
                    delta = {"type": "text_delta", "text": change.added}
                case ItemKind.CALL:
                    delta = {"type": "input_json_delta", "partial_json": change.added}
            yield _event("content_block_delta", index=item.index, delta=delta)
        if change.closes:
            if item.kind is ItemKind.REASONING:
                delta = {"type": "signature_delta", "signature": ""}
                yield _event("content_block_delta", index=item.index, delta=delta)
            yield _event("content_block_stop", index=item.index)


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})
