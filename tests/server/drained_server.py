"""A server of its own in front of the scripted target, as a process: `drained_server.py TIMEOUT_S GATE`.

After a few steps it stands still until the file GATE is there, so that answers end when a test wants it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import uvicorn
from engine_helpers import make_engine
from server_helpers import make_test_server

from slipstream.scheduler.protocol import Executor, StepPlan, StepResult
from slipstream.server.drain import DrainingServer
from slipstream.server.http_protocol import HttpProtocol
from slipstream.server.logs import configure_logging
from slipstream.server.serve import bind

FREE_STEPS = 4


class Gated:
    def __init__(self, executor: Executor, gate: Path) -> None:
        self._executor = executor
        self._gate = gate

    def execute(self, plan: StepPlan) -> StepResult:
        while plan.step >= FREE_STEPS and not self._gate.exists():
            time.sleep(0.01)
        return self._executor.execute(plan)


def main() -> None:
    timeout_s, gate = float(sys.argv[1]), Path(sys.argv[2])
    configure_logging("json", "info")
    engine = make_engine(max_model_len=4096, num_kv_blocks=400, wrap=lambda inner: Gated(inner, gate))
    app, front = make_test_server(engine)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, http=HttpProtocol, log_config=None, access_log=False, timeout_graceful_shutdown=5)
    DrainingServer(config, front, timeout_s, lambda: print(port, flush=True)).run(sockets=[listener])


if __name__ == "__main__":
    main()
