"""Thread or process between HTTP and engine? Measures both with the embedded model; the product has the thread.

The process variant lives here only: the same messages and the same loop, over two pipes. The client runs in a process
of its own, the two servers take turns, and only one of them works at a time.

    python benchmarks/thread_or_process.py [--repeats 3] [--num-prompts 64] [--output-len 64]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import cast

import httpx
import uvicorn
from rich.console import Console
from rich.table import Table

from slipstream.bench.arrivals import closed_loop
from slipstream.bench.client import HttpLoad, Target
from slipstream.bench.dataset import built_in
from slipstream.bench.metrics import BenchResult, summarize
from slipstream.config import Settings
from slipstream.engine.async_engine import AsyncEngine
from slipstream.engine.build import build_engine
from slipstream.engine.engine import EngineLoad
from slipstream.engine.engine_thread import EngineBackend, EngineThread
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.loop import EngineLoop
from slipstream.engine.messages import Event, Message, Shutdown
from slipstream.engine.vocabulary import Vocabulary
from slipstream.engine.worker import WorkerThread
from slipstream.models.loading import open_model
from slipstream.request import SamplingParams
from slipstream.server.app import create_app
from slipstream.server.serve import bind
from slipstream.server.served_model import ServedModel

VARIANTS = ("thread", "process")
CONCURRENCY = (1, 8, 32)
MODEL_NAME = "bench"


class PipeInbox:
    """Messages from another process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, timeout: float | None) -> Message | None:
        """See Inbox."""
        try:
            return cast(Message, self._connection.recv()) if self._connection.poll(timeout) else None
        except EOFError:
            return Shutdown()


def run_engine_process(settings: Settings, messages: Connection, events: Connection) -> None:
    """The child: builds the engine, says how many tokens a request may have, and loops."""
    built = build_engine(settings)
    events.send(built.engine.scheduler.max_request_tokens)
    EngineLoop(built.engine, PipeInbox(messages), events.send).run()


class EngineProcess:
    """The engine loop in a process of its own; see EngineBackend. Its load is not known here."""

    load = EngineLoad(0, 0, 0.0)
    step_started = None

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        inbox, self._messages = context.Pipe(duplex=False)
        self._events, outbox = context.Pipe(duplex=False)
        self._process = context.Process(target=run_engine_process, args=(settings, inbox, outbox), daemon=True)
        self._process.start()
        self.max_request_tokens = cast(int, self._events.recv())

    def clock(self) -> float:
        return time.monotonic()  # one clock for all processes of a machine

    def start(self, deliver: Callable[[Event], None]) -> None:
        def read() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    deliver(self._events.recv())

        threading.Thread(target=read, daemon=True).start()

    def put(self, message: Message) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended; is_alive tells
            self._messages.send(message)

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def join(self, timeout_s: float) -> None:
        self._process.join(timeout_s)


def serve(variant: str, port: int) -> None:
    """One server; the two differ in the backend alone."""
    settings = settings_from_flat(
        {"max_num_seqs": 32, "max_model_len": 1024, "speculative_config": {"method": "ngram"}}
    )
    source = open_model(settings.model.model, progress=False)
    backend: EngineBackend
    if variant == "process":
        process = EngineProcess(settings)
        backend, limit = process, process.max_request_tokens
    else:
        worker = WorkerThread("slipstream-engine")
        engine = worker.submit(lambda: build_engine(settings)).result().engine
        backend, limit = EngineThread(engine, worker), engine.scheduler.max_request_tokens
    model = ServedModel(MODEL_NAME, source.tokenizer, source.chat_template, limit, 0)
    app = create_app(AsyncEngine(backend, Vocabulary.from_tokenizer(source.tokenizer)), model)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[bind("127.0.0.1", port)])


@contextlib.contextmanager
def started(variant: str) -> Iterator[str]:
    """A server in a process of its own; gives its URL."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    process = subprocess.Popen([sys.executable, __file__, "--serve", variant, "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            if process.poll() is not None:
                raise SystemExit(f"the {variant} server ended with {process.returncode}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def measure(url: str, concurrency: int, num_prompts: int, output_len: int) -> BenchResult:
    """One closed-loop run; greedy, EOS ignored, so that both servers do the same work."""
    sampling = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    workload = [(prompt, sampling) for prompt in built_in().take(num_prompts)]
    load = HttpLoad(Target(base_url=url, model=MODEL_NAME))
    result = summarize(asyncio.run(load.run(workload, closed_loop(num_prompts, concurrency))))
    if result.failed:
        raise SystemExit(f"{result.failed} requests failed: {result.failures}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=64, help="at concurrency 32; fewer below, in proportion")
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--serve", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.port)
        return
    results: dict[tuple[int, str], list[BenchResult]] = {}
    with started("thread") as thread_url, started("process") as process_url:
        urls = {"thread": thread_url, "process": process_url}
        for url in urls.values():
            measure(url, 8, 12, 8)  # warm-up; also fills the prefix cache alike
        for concurrency in CONCURRENCY:
            number = max(args.num_prompts * concurrency // 32, 4)
            for repeat in range(args.repeats):
                for variant in VARIANTS if repeat % 2 == 0 else reversed(VARIANTS):
                    result = measure(urls[variant], concurrency, number, args.output_len)
                    results.setdefault((concurrency, variant), []).append(result)
    table = Table("concurrency", "engine in a", "tokens/s", "TTFT ms", "TPOT ms", title="Medians over the repeats")
    for (concurrency, variant), runs in results.items():
        table.add_row(
            str(concurrency),
            variant,
            _median([run.output_throughput for run in runs]),
            _median([run.ttft_ms.median for run in runs if run.ttft_ms is not None]),
            _median([run.tpot_ms.median for run in runs if run.tpot_ms is not None]),
        )
    Console().print(table)


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-"


if __name__ == "__main__":
    main()
