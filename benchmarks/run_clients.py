"""Foreign clients, unchanged, against a server that is started for them. Each gets an environment of its own.

    python benchmarks/run_clients.py [NAME …] [--model MODEL] [--folder build/clients] [--json FILE] [--large]

Without names: all but those whose installation is measured in gigabytes, which `--large` adds. Exit status 1 when one
of them fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import httpx
from clients.catalogue import CLIENTS, LARGE
from clients.visiting import Outcome, visit
from rich.console import Console
from rich.table import Table
from running_server import running_server

from slipstream.config import EMBEDDED_MODEL
from slipstream.models.loading import open_model
from slipstream.models.tokenizer_folder import write_tokenizer_folder
from slipstream.version import __version__


def main() -> int:
    names = [client.name for client in CLIENTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="as for serve")
    parser.add_argument("--folder", type=Path, default=Path("build/clients"), help="environments and reports")
    parser.add_argument("--json", type=Path, help="where the outcomes go (default: FOLDER/clients.json)")
    parser.add_argument("--large", action="store_true", help=f"also {', '.join(LARGE)}")
    args = parser.parse_args()
    unknown = sorted(set(args.names) - set(names))
    if unknown:
        parser.error(f"no client {', '.join(unknown)}; there are {', '.join(names)}")
    wanted = [
        client
        for client in CLIENTS
        if (client.name in args.names if args.names else args.large or client.name not in LARGE)
    ]
    folder = args.folder.resolve()
    tokenizer = folder / "tokenizer"
    if any(client.needs_tokenizer for client in wanted):
        write_tokenizer_folder(open_model(args.model), tokenizer)
    with running_server(args.model, ["--no-access-log"]) as server:
        name = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"][0]["id"]
        outcomes = [visit(client, server.url, name, tokenizer, folder / client.name) for client in wanted]
    target = args.json or folder / "clients.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    found = {"slipstream": __version__, "model": args.model, "clients": [dataclasses.asdict(one) for one in outcomes]}
    target.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    show(outcomes)
    return 1 if any(outcome.error for outcome in outcomes) else 0


def show(outcomes: list[Outcome]) -> None:
    table = Table("client", "versions", "seconds", "outcome")
    for outcome in outcomes:
        said = "ok" if outcome.error is None else outcome.error.strip().splitlines()[-1]
        table.add_row(outcome.client, ", ".join(outcome.requirements), f"{outcome.seconds:.1f}", said)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
