"""`/v1/responses`: text in, text and function calls out. Answers are not kept."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta, PositionLogprobs
from slipstream.server.answers import ReasoningCount, UsageCount, collect, new_id
from slipstream.server.assistant_text import AssistantReader
from slipstream.server.constraints import answer_constraint
from slipstream.server.logprobs import chat_entries
from slipstream.server.notes import Notes, check_tools
from slipstream.server.output_items import ItemChange, ItemKind, OutputItem, OutputItems
from slipstream.server.service import Service
from slipstream.server.speculation_report import SpeculationReport
from slipstream.server.sse import EventStream, named_event, unless_client_gone
from slipstream.server.streams import stream_answer
from slipstream.server.wire.fields import shortened
from slipstream.server.wire.responses import LOGPROBS_INCLUDED, ResponsesRequest

PREFIXES = {ItemKind.REASONING: "rs", ItemKind.TEXT: "msg", ItemKind.CALL: "fc"}


def response_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/responses")
    async def responses(request: Request) -> Response:
        """Answer an input."""
        body, notes = await service.read(request, ResponsesRequest)
        model = service.model
        model.check_name(body.model)
        conversation = body.conversation()
        check_tools(conversation.tools, notes)
        for name in body.include or ():
            if name != LOGPROBS_INCLUDED:
                notes.add(f"include: {shortened(name)!r} is in no answer of this server", "include", "unknown_value")
        prompt, written = await model.encode_chat(conversation)
        sampling = body.sampling(
            max_tokens=body.max_output_tokens,
            logprobs=body.num_logprobs(),
            thinking=model.thinking_budget(body.thinking_token_budget, written, "thinking_token_budget"),
            constraint=answer_constraint(body.constraint(), written, model),
            **service.restrictions(body),
        )
        answer_id = new_id("resp", "_")
        generation = await service.submit(request, answer_id, [prompt], sampling, body, notes)
        report = SpeculationReport(body, model.num_speculative_tokens)
        counts = model.reasoning_counts(written, 1)
        answer = _Answer(answer_id, model.name, body, generation, report, notes, counts, written.reader())
        if body.stream:
            return EventStream(stream_answer(generation, _ResponseStream(answer)), generation.close)
        (choice,) = await unless_client_gone(request, collect(generation))
        if counts:
            counts[0].add(choice.token_ids)
        answer.logprobs = choice.logprobs
        for _ in answer.read(choice.text, is_last=True):
            pass
        return JSONResponse(answer.as_json(choice.finish_reason))

    return router


class _Answer:
    """The response object while it grows."""

    def __init__(
        self,
        answer_id: str,
        model_name: str,
        body: ResponsesRequest,
        generation: Generation,
        report: SpeculationReport,
        notes: Notes,
        counts: list[ReasoningCount],
        reader: AssistantReader,
    ) -> None:
        self.counts = counts
        self.items = OutputItems(PREFIXES)
        self.logprobs: list[PositionLogprobs] = []
        self.wants_logprobs = body.num_logprobs() is not None
        self._id = answer_id
        self._model_name = model_name
        self._body = body
        self._generation = generation
        self._report = report
        self._notes = notes
        self._reader = reader
        self._created = int(time.time())

    def read(self, text: str, *, is_last: bool) -> Iterable[ItemChange]:
        """What a piece of the model's text changes; the last one closes everything."""
        yield from self.items.add(self._reader.read(text, is_last=is_last))
        if is_last:
            if not self.items.items:  # an empty answer is an empty message
                yield from self.items.open_empty()
            yield from self.items.close()

    def as_json(self, finish_reason: str | None, error: str | None = None) -> dict[str, Any]:
        """The whole object; without a finish reason it is in progress."""
        body = self._body
        is_cut = finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        if finish_reason is None:
            status = "in_progress" if error is None else "failed"
        sampling = self._generation.submissions[0].sampling
        has_ended = finish_reason is not None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None if error is None else {"code": "server_error", "message": error},
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model_name,
            "output": [self.item_json(item, is_cut=is_cut) for item in self.items.items],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": self._usage() if has_ended else None,
            "user": body.user,
            **(self._report.of_answer(self._generation) if has_ended else {}),
            **self._notes.as_fields(),
        }

    def item_json(self, item: OutputItem, *, is_open: bool = False, is_cut: bool = False) -> dict[str, Any]:
        """An output item; an open one has no content yet. `is_cut`: the answer ended at a limit."""
        is_cut &= item is self.items.items[-1]
        status = "in_progress" if is_open else "incomplete" if is_cut else "completed"
        common = {"id": item.item_id, "status": status}
        if item.kind is ItemKind.CALL:
            arguments = "" if is_open else item.text
            return common | {
                "type": "function_call",
                "call_id": item.call_id,
                "name": item.name,
                "arguments": arguments,
            }
        content = [] if is_open else [self.part_json(item)]
        if item.kind is ItemKind.REASONING:
            return common | {"type": "reasoning", "summary": [], "content": content}
        return common | {"type": "message", "role": "assistant", "content": content}

    def part_json(self, item: OutputItem, *, is_open: bool = False) -> dict[str, Any]:
        """The one part of a message or of reasoning."""
        text = "" if is_open else item.text
        if item.kind is ItemKind.REASONING:
            return {"type": "reasoning_text", "text": text}
        logprobs = [] if is_open or not self.wants_logprobs else chat_entries(self.logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _usage(self) -> dict[str, Any]:
        usage = UsageCount(self._generation, self.counts).count_all()
        return {
            "input_tokens": usage.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
            "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        }


class _ResponseStream:
    """An AnswerStream of typed, numbered events."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._number = 0
        self._new_logprobs: list[PositionLogprobs] = []

    def begin(self) -> Iterable[bytes]:
        """See AnswerStream."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._answer.as_json(None))

    def delta(self, number: int, delta: ChoiceDelta) -> Iterable[bytes]:
        """See AnswerStream."""
        answer = self._answer
        if answer.counts:
            answer.counts[0].add(delta.token_ids)
        answer.logprobs += delta.logprobs or ()
        self._new_logprobs += delta.logprobs or ()
        # All of them first: only then is it certain which item is the last one, that a limit has cut.
        for change in list(answer.read(delta.text, is_last=delta.finish_reason is not None)):
            yield from self._of_change(change, is_cut=delta.finish_reason == "length")
        if delta.finish_reason is not None:
            whole = answer.as_json(delta.finish_reason.value)
            yield self._event(f"response.{whole['status']}", response=whole)

    def end(self) -> Iterable[bytes]:
        """See AnswerStream."""
        return ()

    def failed(self, message: str) -> Iterable[bytes]:
        """See AnswerStream."""
        yield self._event("response.failed", response=self._answer.as_json(None, message))

    def _event(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return named_event(kind, payload)

    def _of_change(self, change: ItemChange, *, is_cut: bool) -> Iterable[bytes]:
        answer, item = self._answer, change.item
        where = {"item_id": item.item_id, "output_index": item.index}
        part = where | {"content_index": 0}
        if change.opens:
            yield self._event(
                "response.output_item.added", output_index=item.index, item=answer.item_json(item, is_open=True)
            )
            if item.kind is not ItemKind.CALL:
                yield self._event("response.content_part.added", **part, part=answer.part_json(item, is_open=True))
        if change.added:
            match item.kind:
                case ItemKind.CALL:
                    yield self._event("response.function_call_arguments.delta", **where, delta=change.added)
                case ItemKind.REASONING:
                    yield self._event("response.reasoning_text.delta", **part, delta=change.added)
                case ItemKind.TEXT:
                    entries, self._new_logprobs = chat_entries(self._new_logprobs), []
                    yield self._event("response.output_text.delta", **part, delta=change.added, logprobs=entries)
        if change.closes:
            match item.kind:
                case ItemKind.CALL:
                    yield self._event(
                        "response.function_call_arguments.done", **where, name=item.name, arguments=item.text
                    )
                case ItemKind.REASONING:
                    yield self._event("response.reasoning_text.done", **part, text=item.text)
                case ItemKind.TEXT:
                    logprobs = answer.part_json(item)["logprobs"]
                    yield self._event("response.output_text.done", **part, text=item.text, logprobs=logprobs)
            if item.kind is not ItemKind.CALL:
                yield self._event("response.content_part.done", **part, part=answer.part_json(item))
            yield self._event(
                "response.output_item.done", output_index=item.index, item=answer.item_json(item, is_cut=is_cut)
            )
