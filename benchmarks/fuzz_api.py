"""schemathesis on the server's own description: makes requests from `/openapi.json` and fails on any answer 5xx.

    python benchmarks/fuzz_api.py [--examples 100] [--seed 0] [--report build/fuzz.xml] [MODEL]

Needs the extra `fuzz`. The server's context is short, so that no answer takes long. Exit status 1 when one failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from running_server import running_server

from slipstream.config import EMBEDDED_MODEL

CONTEXT = 128
REQUEST_S = 300
FLAGS = ("--max-model-len", str(CONTEXT), "--no-access-log")


def command(url: str, examples: int, seed: int, report: Path) -> list[str]:
    """The run of schemathesis. Only server errors are judged: a refusal is a right answer to a made-up request."""
    return [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{url}/openapi.json",
        "--checks=not_a_server_error",
        f"--max-examples={examples}",
        f"--seed={seed}",
        f"--request-timeout={REQUEST_S}",
        f"--report-junit-path={report}",
        "--continue-on-failure",
        "--suppress-health-check=all",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL, help="as for serve")
    parser.add_argument("--examples", type=int, default=100, help="requests per route and phase at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, default=Path("build/fuzz.xml"), help="JUnit's format")
    args = parser.parse_args()
    args.report.parent.mkdir(parents=True, exist_ok=True)
    with running_server(args.model, FLAGS) as server:
        done = subprocess.run(command(server.url, args.examples, args.seed, args.report), check=False)
        # What a request did to the server shows in its log too.
        faults = [line for line in server.lines if "Traceback" in line]
    if faults:
        print(f"fuzz_api: the server's log holds {len(faults)} tracebacks", file=sys.stderr)
    return 1 if done.returncode or faults else 0


if __name__ == "__main__":
    sys.exit(main())
