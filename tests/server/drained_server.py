"""A server of its own in front of the scripted target, as a process: `drained_server.py TIMEOUT_S STEP_S`."""

from __future__ import annotations

import sys
import time

import uvicorn
from engine_helpers import make_engine
from server_helpers import make_test_server

from slipstream.scheduler.protocol import Executor, StepPlan, StepResult
from slipstream.server.drain import DrainingServer
from slipstream.server.http_protocol import HttpProtocol
from slipstream.server.logs import configure_logging
from slipstream.server.serve import bind


class Slow:
    def __init__(self, executor: Executor, seconds: float) -> None:
        self._executor = executor
        self._seconds = seconds

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self._seconds)
        return self._executor.execute(plan)


def main() -> None:
    timeout_s, step_s = float(sys.argv[1]), float(sys.argv[2])
    configure_logging("json", "info")
    engine = make_engine(max_model_len=4096, num_kv_blocks=400, wrap=lambda inner: Slow(inner, step_s))
    app, front = make_test_server(engine)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, http=HttpProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=5)
    DrainingServer(config, front, timeout_s, lambda: print(port, flush=True)).run(sockets=[listener])


if __name__ == "__main__":
    main()
