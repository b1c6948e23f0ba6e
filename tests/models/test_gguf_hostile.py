"""Truncated and hostile GGUF files give an error that names the file: no crash, no hang, no memory gone."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
import torch
from tiny_gguf import write_tiny_gguf

from slipstream.models.config import ModelLoadError
from slipstream.models.gguf_file import GGUFFile
from slipstream.models.loading import open_model

STRING, ARRAY = 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(tensors: int, key_values: int, body: bytes = b"", magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, key_values) + body


def tensor_entry(name: bytes, dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


HUGE = (1 << 64) - 1
HOSTILE = {
    "empty": b"",
    "short": b"GGUF",
    "wrong magic": header(0, 0, bytes(64), magic=b"PK\x03\x04"),
    "version 1": header(0, 0, bytes(64), version=1),
    "big-endian": header(0, 0, bytes(64), version=3 << 24),
    "tensor count": header(HUGE, 0, bytes(64)),
    "key-value count": header(0, HUGE, bytes(64)),
    "count that just fits": header(0, 4, bytes(64)),
    "key length": header(0, 1, struct.pack("<Q", HUGE) + bytes(64)),
    "key not UTF-8": header(0, 1, text(b"\xff\xfe") + struct.pack("<IB", 0, 1) + bytes(32)),
    "key twice": header(0, 2, 2 * (text(b"key") + struct.pack("<IB", 0, 1))),
    "value type": header(0, 1, text(b"key") + struct.pack("<I", 99) + bytes(64)),
    "string length": header(0, 1, text(b"key") + struct.pack("<IQ", STRING, HUGE) + bytes(64)),
    "array count": header(0, 1, text(b"key") + struct.pack("<IIQ", ARRAY, 4, HUGE) + bytes(64)),
    "array of strings count": header(0, 1, text(b"key") + struct.pack("<IIQ", ARRAY, STRING, 1 << 60) + bytes(64)),
    "nested arrays": header(0, 1, text(b"key") + struct.pack("<IIQ", ARRAY, ARRAY, 1) * 5000),
    "dimension count": header(1, 0, text(b"x") + struct.pack("<I", 1 << 31) + bytes(64)),
    "no dimension": header(1, 0, text(b"x") + struct.pack("<IIQ", 0, 0, 0) + bytes(64)),
    "empty tensor": header(1, 0, tensor_entry(b"x", (0, 5)) + bytes(64)),
    "dimensions that overflow": header(1, 0, tensor_entry(b"x", (1 << 32, 1 << 32)) + bytes(64)),
    "dimensions beyond the file": header(1, 0, tensor_entry(b"x", (1 << 20,)) + bytes(64)),
    "unknown tensor type": header(1, 0, tensor_entry(b"x", (4,), kind=4) + bytes(64)),
    "block not filled": header(1, 0, tensor_entry(b"x", (33,), kind=8) + bytes(64)),
    "offset beyond the file": header(1, 0, tensor_entry(b"x", (4,), offset=1 << 63) + bytes(64)),
    "offset not aligned": header(1, 0, tensor_entry(b"x", (4,), offset=4) + bytes(128)),
    "tensor twice": header(2, 0, 2 * tensor_entry(b"x", (4,)) + bytes(128)),
    "nothing inside": header(0, 0, bytes(64)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_header(tmp_path: Path, case: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[case])
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(ModelLoadError) as caught:
            open_model(str(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 10_000_000
    assert time.monotonic() - started < 10


def test_cut_at_any_byte(tmp_path: Path) -> None:
    """Every prefix of a good file is refused, and the whole of it is not."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, "llama")
    whole = path.read_bytes()
    last = max(tensor.start + tensor.size for tensor in GGUFFile(path).tensors.values())
    draw = random.Random(0)
    for cut in [*range(200), *(draw.randrange(last) for _ in range(300)), last - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises(ModelLoadError, match=r"tiny\.gguf"):
            open_model(str(path))
    path.write_bytes(whole[:last])
    open_model(str(path))


def test_damaged_bytes_load_or_give_the_error(tmp_path: Path) -> None:
    """Damage may go unseen (a weight) or be refused; nothing else may come out, loading the weights included."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, "qwen2")
    whole = path.read_bytes()
    data_start = min(tensor.start for tensor in GGUFFile(path).tensors.values())
    draw = random.Random(1)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 1, 4))):
            damaged[draw.randrange(data_start)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        path.write_bytes(damaged)
        try:
            open_model(str(path)).load_weights(torch.float32, "cpu")
        except ModelLoadError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 100
