"""The foreign clients that are run against a server: what each needs, how it is started, where its report lies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
NUM_REQUESTS = 32
CONCURRENCY = 8
INPUT_TOKENS, OUTPUT_TOKENS = 64, 64


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of a client.

    Attributes:
        python: interpreter of the client's own environment. url: of the server, without `/v1`. model: its name there.
        tokenizer: folder of the model's tokenizer. folder: where the client may write.
    """

    python: Path
    url: str
    model: str
    tokenizer: Path
    folder: Path

    def program(self, name: str) -> str:
        """A command that was installed beside the interpreter."""
        return str(self.python.parent / name)


@dataclass(frozen=True, slots=True)
class Client:
    """A client under test.

    Attributes:
        requirements: pinned; empty for one that the development environment has.
        command: what is run. report: the file it leaves, relative to the visit's folder; None: what it prints is JSON.
        needs_tokenizer: a tokenizer folder is made for it.
        is_told_offline: by Hugging Face's variables, so that it looks for nothing on a model hub.
    """

    name: str
    requirements: tuple[str, ...]
    command: Callable[[Visit], list[str]]
    report: str | None = None
    needs_tokenizer: bool = False
    is_told_offline: bool = True


def _script(name: str) -> Callable[[Visit], list[str]]:
    return lambda visit: [str(visit.python), str(HERE / name), visit.url, visit.model]


def _vllm(visit: Visit) -> list[str]:
    flags: Mapping[str, object] = {
        "backend": "openai-chat",
        "base-url": visit.url,
        "endpoint": "/v1/chat/completions",
        "model": visit.model,
        "tokenizer": visit.tokenizer,
        "dataset-name": "random",
        "random-input-len": INPUT_TOKENS,
        "random-output-len": OUTPUT_TOKENS,
        "num-prompts": NUM_REQUESTS,
        "max-concurrency": CONCURRENCY,
        "result-dir": visit.folder,
        "result-filename": "report.json",
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [visit.program("vllm"), "bench", "serve", *given, "--ignore-eos", "--save-result"]


def _guidellm(visit: Visit) -> list[str]:
    def words(**values: object) -> str:
        return json.dumps(values)

    return [
        visit.program("guidellm"),
        "run",
        "--backend",
        words(kind="openai_http", target=visit.url, model=visit.model),
        "--profile",
        words(kind="concurrent", streams=[CONCURRENCY]),
        "--constraint",
        words(kind="max_requests", count=NUM_REQUESTS),
        "--tokenizer",
        words(kind="huggingface_auto", model=str(visit.tokenizer)),
        "--data",
        words(kind="synthetic_text", prompt_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS),
        "--output",
        words(kind="json", path=str(visit.folder / "report.json")),
        "--disable-console-interactive",
    ]


def _aiperf(visit: Visit) -> list[str]:
    flags: Mapping[str, object] = {
        "model": visit.model,
        "url": visit.url,
        "endpoint-type": "chat",
        "tokenizer": visit.tokenizer,
        "concurrency": CONCURRENCY,
        "request-count": NUM_REQUESTS,
        "isl": INPUT_TOKENS,
        "osl": OUTPUT_TOKENS,
        "output-artifact-dir": visit.folder,
        "ui-type": "none",
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [visit.program("aiperf"), "profile", "--streaming", *given]


CLIENTS = (
    Client("openai", (), _script("openai_client.py")),
    Client("anthropic", (), _script("anthropic_client.py")),
    Client("langchain", ("langchain-openai==1.7.4",), _script("langchain_client.py")),
    Client("llamaindex", ("llama-index-llms-openai-like==0.8.1",), _script("llamaindex_client.py")),
    Client("guidellm", ("guidellm==0.8.1",), _guidellm, "report.json", needs_tokenizer=True),
    Client(
        "aiperf",
        ("aiperf==0.13.0",),
        _aiperf,
        "profile_export_aiperf.json",
        needs_tokenizer=True,
        # Told so, it takes every tokenizer for one in the hub's cache, a local folder too.
        is_told_offline=False,
    ),
    # Its wheel is 336 MB and asks for torch 2.14.0 and torchaudio, torchvision, torchcodec beside it.
    Client("vllm", ("vllm[bench]==0.33.0",), _vllm, "report.json", needs_tokenizer=True),
)
LARGE = ("vllm",)


def python_of(client: Client, folder: Path) -> Path:
    """The interpreter that a client is run with."""
    return folder / "venv" / "bin" / "python" if client.requirements else Path(sys.executable)
