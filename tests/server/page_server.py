"""The embedded model with the drafter that ships, for screenshots of the page: no cost table, so it always drafts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from slipstream.config import AUTO_METHOD, Settings, SpeculativeSettings
from slipstream.engine.build import build_engine
from slipstream.engine.worker import WorkerThread
from slipstream.server.http_protocol import HttpProtocol
from slipstream.server.options import ServerOptions
from slipstream.server.serve import bind, make_app


@contextmanager
def serve_embedded() -> Iterator[str]:
    """Its address, while it is served."""
    settings = Settings(speculative=SpeculativeSettings(method=AUTO_METHOD))
    worker = WorkerThread("slipstream-engine")
    built = worker.submit(lambda: build_engine(settings)).result()
    app, _ = make_app(built, worker, ServerOptions())
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=HttpProtocol, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
