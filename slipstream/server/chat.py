"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from slipstream.engine.async_engine import Generation
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.server.answers import CollectedChoice, UsageCount, collect, new_id
from slipstream.server.assistant_text import AssistantDelta, AssistantReader, TextDelta
from slipstream.server.constraints import answer_constraint
from slipstream.server.conversation import ChatText
from slipstream.server.logprobs import chat_logprobs, prompt_logprobs
from slipstream.server.notes import Notes, check_tools
from slipstream.server.served_model import ServedModel
from slipstream.server.service import Service
from slipstream.server.speculation_report import SpeculationReport
from slipstream.server.sse import EventStream, unless_client_gone
from slipstream.server.streams import ChunkStream, stream_answer
from slipstream.server.token_report import TokenReport
from slipstream.server.wire.chat import ChatRequest


def chat_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        body, notes = await service.read(request, ChatRequest)
        body.check()
        model = service.model
        model.check_name(body.model)
        conversation = body.conversation()
        check_tools(conversation.tools, notes)
        prompt, written = await model.encode_chat(conversation)
        sampling = body.sampling(
            max_tokens=body.output_limit(),
            logprobs=body.num_logprobs(),
            prompt_logprobs=body.prompt_logprobs,
            thinking=model.thinking_budget(body.thinking_token_budget, written, "thinking_token_budget"),
            **body.choice_parameters(),
            constraint=answer_constraint(body.constraint(), written, model),
            **service.restrictions(body),
        )
        answer_id = new_id("chatcmpl")
        generation = await service.submit(request, answer_id, [prompt], sampling, body, notes)
        envelope: dict[str, Any] = {"id": answer_id, "created": int(time.time()), "model": model.name}
        report = SpeculationReport(body, model.num_speculative_tokens)
        if body.stream:
            envelope["object"] = "chat.completion.chunk"
            stream = _ChatStream(generation, body, envelope, report, notes, model, written)
            return EventStream(stream_answer(generation, stream), generation.close)
        choices = await unless_client_gone(request, collect(generation))
        counts = model.reasoning_counts(written, len(choices))
        for count, choice in zip(counts, choices, strict=False):
            count.add(choice.token_ids)
        answer = {
            **envelope,
            "object": "chat.completion",
            "choices": [
                _choice(number, choice, body, written.reader()) | report.of_choice(generation, number)
                for number, choice in enumerate(choices)
            ],
            "usage": UsageCount(generation, counts).count_all().as_json(),
            **report.of_answer(generation),
            **notes.as_fields(),
        }
        if choices[0].prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(choices[0].prompt_logprobs)
        if body.return_token_ids:
            answer["prompt_token_ids"] = prompt
        return JSONResponse(answer)

    return router


def finish_reason(reason: str | None, reader: AssistantReader) -> str | None:
    """OpenAI's word: an answer that ended by itself after calls waits for their results."""
    return "tool_calls" if reason == "stop" and reader.num_calls else reason


def _choice(number: int, choice: CollectedChoice, body: ChatRequest, reader: AssistantReader) -> dict[str, Any]:
    reasoning, content, calls = "", "", list[dict[str, Any]]()
    for delta in reader.read(choice.text, is_last=True):
        if isinstance(delta, TextDelta):
            if delta.is_reasoning:
                reasoning += delta.text
            else:
                content += delta.text
        elif delta.name is not None:
            function = {"name": delta.name, "arguments": delta.arguments}
            calls.append({"id": new_id("call", "_"), "type": "function", "function": function})
        else:
            calls[-1]["function"]["arguments"] += delta.arguments
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if reasoning and body.include_reasoning is not False:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    wanted = choice.logprobs if body.logprobs else None
    answer: dict[str, Any] = {
        "index": number,
        "message": message,
        "logprobs": chat_logprobs(wanted, as_ids=bool(body.return_tokens_as_token_ids)),
        "finish_reason": finish_reason(choice.finish_reason, reader),
        "stop_reason": choice.stop_reason,
    }
    if body.return_token_ids:
        answer["token_ids"] = choice.token_ids
    return answer


class _ChatStream(ChunkStream):
    def __init__(
        self,
        generation: Generation,
        body: ChatRequest,
        envelope: dict[str, Any],
        report: SpeculationReport,
        notes: Notes,
        model: ServedModel,
        written: ChatText,
    ) -> None:
        num_choices = len(generation.metrics)
        self._counts = model.reasoning_counts(written, num_choices)
        usage = UsageCount(generation, self._counts)
        super().__init__(
            generation, body, envelope, usage, report, notes, TokenReport(body.stream_options, model.tokenizer)
        )
        self._readers = [written.reader() for _ in range(num_choices)]
        self._shows_reasoning = body.include_reasoning is not False
        if body.return_token_ids:
            self._first_fields["prompt_token_ids"] = list(generation.submissions[0].prompt_token_ids)

    def opening(self, number: int) -> dict[str, Any]:
        """See ChunkStream."""
        delta = {"role": "assistant", "content": ""}
        return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, number: int, delta: ChoiceDelta) -> tuple[dict[str, Any], bool]:
        """See ChunkStream."""
        reader = self._readers[number]
        if self._counts:
            self._counts[number].add(delta.token_ids)
        message = self._message(reader.read(delta.text, is_last=delta.finish_reason is not None))
        choice: dict[str, Any] = {
            "index": number,
            "delta": message,
            "logprobs": chat_logprobs(delta.logprobs, as_ids=bool(self._body.return_tokens_as_token_ids)),
            "finish_reason": None,
        }
        if delta.finish_reason is not None:
            reason = finish_reason(delta.finish_reason.value, reader)
            choice |= {"finish_reason": reason, "stop_reason": delta.stop_reason}
        return choice, bool(message)

    def _message(self, deltas: list[AssistantDelta]) -> dict[str, Any]:
        message: dict[str, Any] = {}
        for delta in deltas:
            if isinstance(delta, TextDelta):
                name = "reasoning_content" if delta.is_reasoning else "content"
                if not delta.is_reasoning or self._shows_reasoning:
                    message[name] = message.get(name, "") + delta.text
                continue
            entry: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.arguments}}
            if delta.name is not None:
                entry["id"], entry["type"] = new_id("call", "_"), "function"
                entry["function"]["name"] = delta.name
            calls = message.setdefault("tool_calls", [])
            if delta.name is None and calls and calls[-1]["index"] == delta.index:
                calls[-1]["function"]["arguments"] += delta.arguments
            else:
                calls.append(entry)
        return message
