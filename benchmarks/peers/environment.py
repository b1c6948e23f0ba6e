"""Makes the virtual environment of a peer, on first use and when its pins change.

    python benchmarks/peers/environment.py [PEER …]     (from anywhere; default: all of peers.toml, one after another)

They lie in build/peers/, outside git. pip is used as the user has set it up; what it says is kept in NAME.log there.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
ENVIRONMENTS = BENCHMARKS.parent / "build" / "peers"
PINS = Path(__file__).with_name("peers.toml")
INSTALL_LIMIT_S = 3600.0  # llama.cpp is compiled


class PeerError(RuntimeError):
    """A peer that cannot be installed or run; one line that says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to measure beside. module: what runs it, in an environment that holds `packages`, each pinned, but not
    those they bring and `without` names."""

    name: str
    module: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Of its environment."""
        return ENVIRONMENTS / self.name

    @property
    def python(self) -> Path:
        """Its environment's interpreter."""
        return self.folder / "bin" / "python"


def read_peers(path: Path = PINS) -> dict[str, Peer]:
    """All peers by name."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: Peer(name, table["module"], tuple(table["packages"]), tuple(table.get("without", ())))
        for name, table in tables.items()
    }


def ensure_environment(peer: Peer, python: str = sys.executable) -> Path:
    """The peer's interpreter; its environment is made if it is not there as pinned, by one process at a time.

    Raises:
        PeerError: it could not be installed; what is there is removed.
    """
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / f"{peer.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = peer.folder / "installed.json", json.dumps([peer.packages, peer.without])
        if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
            _install(peer, python)
            stamp.write_text(wanted, encoding="utf-8")
    return peer.python


def _install(peer: Peer, python: str) -> None:
    """Anew. Raises PeerError."""
    shutil.rmtree(peer.folder, ignore_errors=True)
    log = ENVIRONMENTS / f"{peer.name}.log"
    pip = [str(peer.python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    commands = [[python, "-m", "venv", str(peer.folder)], [*pip, "install", *peer.packages]]
    if peer.without:
        commands.append([*pip, "uninstall", "--yes", *peer.without])
    try:
        with log.open("w", encoding="utf-8") as file:
            for command in commands:
                subprocess.run(command, stdout=file, stderr=file, check=True, timeout=INSTALL_LIMIT_S)
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(peer.folder, ignore_errors=True)
        raise PeerError(f"not installed: {last_error(log) or error} (see {log})") from error


def last_error(log: Path, length: int = 300) -> str:
    """The last line of a log that speaks of an error, else its last line; empty where there is none."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if line]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][:length]


def main(arguments: Sequence[str] | None = None) -> int:
    peers = read_peers()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(peers)}")
    parser.add_argument("--python", default=sys.executable, help="interpreter to make environments of (default: this)")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.peers if name not in peers]
    if unknown:
        parser.error(f"no peer {unknown[0]!r}; there are {', '.join(peers)}")
    failed = 0
    for name in args.peers or peers:
        begin = time.monotonic()
        try:
            print(
                f"{name}: {ensure_environment(peers[name], args.python)}, {time.monotonic() - begin:.0f} s", flush=True
            )
        except PeerError as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
