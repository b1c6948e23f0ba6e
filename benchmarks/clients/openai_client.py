"""The openai client: `openai_client.py URL MODEL` prints what it saw, as JSON, or ends with an error."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai


def main() -> None:
    url, model = sys.argv[1:]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    asked: dict[str, Any] = {"model": model, "seed": 1, "messages": [{"role": "user", "content": "Name a colour."}]}
    whole = client.chat.completions.create(**asked, max_tokens=24)
    chunks = list(
        client.chat.completions.create(**asked, max_tokens=24, stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == whole.choices[0].message.content, (streamed, whole)
    completion = client.completions.create(model=model, prompt="One, two,", max_tokens=8, seed=1)
    response = client.responses.create(model=model, input="Name a colour.", max_output_tokens=24)
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens > 0
    report = {
        "version": openai.__version__,
        "models": [found.id for found in client.models.list()],
        "chat": whole.choices[0].message.content,
        "chunks": len(chunks),
        "completion_tokens": usage.completion_tokens,
        "completion": completion.choices[0].text,
        "response": response.output_text,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
