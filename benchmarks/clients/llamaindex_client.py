"""LlamaIndex's OpenAI adapter: `llamaindex_client.py URL MODEL` prints what it saw, as JSON, or ends with an error."""

from __future__ import annotations

import importlib.metadata
import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def main() -> None:
    url, model = sys.argv[1:]
    llm = OpenAILike(
        api_base=f"{url}/v1",
        api_key="none",
        model=model,
        is_chat_model=True,
        max_tokens=24,
        additional_kwargs={"seed": 1},
    )
    question = [ChatMessage(role="system", content="Answer in one word."), ChatMessage(content="Name a colour.")]
    whole = llm.chat(question)
    chunks = list(llm.stream_chat(question))
    streamed = "".join(chunk.delta or "" for chunk in chunks)
    assert streamed == whole.message.content, (streamed, whole.message.content)
    plain = OpenAILike(api_base=f"{url}/v1", api_key="none", model=model, is_chat_model=False, max_tokens=8)
    completion = plain.complete("One, two,").text
    assert completion
    report = {
        "version": importlib.metadata.version("llama-index-llms-openai-like"),
        "answer": whole.message.content,
        "chunks": len(chunks),
        "completion": completion,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
