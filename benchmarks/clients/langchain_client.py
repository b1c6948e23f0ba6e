"""LangChain's OpenAI adapter: `langchain_client.py URL MODEL` prints what it saw, as JSON, or ends with an error."""

from __future__ import annotations

import importlib.metadata
import json
import sys

from langchain_openai import ChatOpenAI


def main() -> None:
    url, model = sys.argv[1:]
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, seed=1, max_tokens=24, stream_usage=True)
    question = [("system", "Answer in one word."), ("human", "Name a colour.")]
    whole = chat.invoke(question)
    chunks = list(chat.stream(question))
    streamed = "".join(str(chunk.content) for chunk in chunks)
    assert streamed == whole.content, (streamed, whole.content)
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0
    batched = chat.batch([question, question])
    assert [answer.content for answer in batched] == [whole.content, whole.content]
    report = {
        "version": importlib.metadata.version("langchain-openai"),
        "answer": whole.content,
        "chunks": len(chunks),
        "usage": dict(whole.usage_metadata),
        "finish_reason": whole.response_metadata["finish_reason"],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
