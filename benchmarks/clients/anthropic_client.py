"""The anthropic client: `anthropic_client.py URL MODEL` prints what it saw, as JSON, or ends with an error."""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic


def main() -> None:
    url, model = sys.argv[1:]
    client = anthropic.Anthropic(base_url=url, api_key="none")
    asked: dict[str, Any] = {
        "model": model,
        "max_tokens": 24,
        "messages": [{"role": "user", "content": "Name a colour."}],
        "extra_body": {"seed": 1},
    }
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = "".join(stream.text_stream)
        last = stream.get_final_message()
    text = "".join(block.text for block in whole.content if block.type == "text")
    assert streamed == text, (streamed, text)
    assert last.usage.output_tokens == whole.usage.output_tokens > 0
    report = {
        "version": anthropic.__version__,
        "message": text,
        "stop_reason": whole.stop_reason,
        "output_tokens": whole.usage.output_tokens,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
