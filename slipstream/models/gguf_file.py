"""The GGUF container: metadata and tensor directory, checked against the file's size before anything is believed.

The gguf package's own reader makes one array view per metadata element and trusts every count, so a broken file can
hold it for ever or fill memory; the format is small enough to read strictly here. Quantised blocks are the package's
work (`gguf.quants`). Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from slipstream.models.config import ModelLoadError
from slipstream.models.files import errors_name

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
}
# The fewest bytes that one entry can take: lengths, type tags and offsets with nothing in between.
_SMALLEST_KEY_VALUE = 8 + 4 + 1
_SMALLEST_TENSOR_ENTRY = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor directory.

    Attributes:
        shape: outermost dimension first (the file's order reversed), so a projection is [out, in].
        kind: how the elements are stored.
        start, size: where its bytes are in the file.
    """

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


class GGUFFile:
    """A GGUF file, mapped into memory. Opening reads metadata and directory only.

    Attributes:
        metadata: key -> number, bool, str, list of str, or numpy array of numbers.
        tensors: name -> directory entry, whose bytes are known to lie inside the file.

    Raises:
        ModelLoadError: it is no GGUF file, is cut short, or claims what cannot be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with errors_name(path):
            if path.stat().st_size < len(MAGIC) + 20:
                raise ModelLoadError(f"too short for a GGUF file ({path.stat().st_size} bytes)")
            self._data = np.memmap(path, dtype=np.uint8, mode="r")
            reader = _HeaderReader(memoryview(self._data.data))
            num_tensors, num_key_values = reader.read_preamble()
            self.metadata = reader.read_metadata(num_key_values)
            self.tensors = reader.read_tensors(num_tensors, self._alignment())

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise ModelLoadError(f"general.alignment must be a power of two, got {alignment!r}")
        return alignment

    def read(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A tensor's elements as float32, in memory of their own, in the shape that the directory gives."""
        tensor = self.tensors[name]
        raw: np.ndarray[Any, np.dtype[np.uint8]] = self._data[tensor.start : tensor.start + tensor.size]
        with errors_name(self.path):
            if tensor.kind in _PLAIN:
                return np.asarray(raw.view(_PLAIN[tensor.kind]).astype(np.float32).reshape(tensor.shape))
            rows = raw.reshape(*tensor.shape[:-1], -1)
            try:
                with np.errstate(all="ignore"):  # a broken block's scale may be NaN or infinite
                    return np.asarray(dequantize(rows, tensor.kind), dtype=np.float32).reshape(tensor.shape)
            except NotImplementedError:
                raise ModelLoadError(
                    f"tensor {name!r} is stored as {tensor.kind.name}, which is not supported"
                ) from None

    def forget_pages(self) -> None:
        """Let the memory go that reading took; what is read again comes from the file again."""
        mapping: mmap.mmap = self._data._mmap  # type: ignore[attr-defined]  # numpy has no public name for it
        if hasattr(mapping, "madvise"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def blocks(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A tensor's bytes as they are stored: [rows, bytes of a row], a view of the file."""
        tensor = self.tensors[name]
        raw: np.ndarray[Any, np.dtype[np.uint8]] = self._data[tensor.start : tensor.start + tensor.size]
        return raw.reshape(math.prod(tensor.shape[:-1]), -1)


class _HeaderReader:
    """A cursor over the header: every read is checked against the bytes that are left."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def read_preamble(self) -> tuple[int, int]:
        """Check magic and version; returns the numbers of tensors and of key-value pairs."""
        magic = bytes(self._data[:4])
        if magic != MAGIC:
            raise ModelLoadError(f"not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}")
        self._position = 4
        version = self._number("<I")
        if version not in VERSIONS:
            hint = "; it looks big-endian" if version & 0xFFFF == 0 else ""
            raise ModelLoadError(f"GGUF version {version} is not supported{hint}; supported are {VERSIONS}")
        num_tensors, num_key_values = self._number("<Q"), self._number("<Q")
        self._expect(num_key_values, _SMALLEST_KEY_VALUE, "key-value pairs")
        self._expect(num_tensors, _SMALLEST_TENSOR_ENTRY, "tensors")
        return num_tensors, num_key_values

    def read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                raise ModelLoadError(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(key, self._number("<I"))
        return metadata

    def read_tensors(self, count: int, alignment: int) -> dict[str, GGUFTensor]:
        entries = [self._tensor_entry() for _ in range(count)]
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise ModelLoadError(f"tensor {name!r} appears twice")
            block_elements, block_bytes = GGML_QUANT_SIZES[kind]
            if shape[-1] % block_elements:
                raise ModelLoadError(
                    f"tensor {name!r}: rows of {shape[-1]} elements do not fill {kind.name} blocks of {block_elements}"
                )
            start, size = data_start + offset, math.prod(shape) // block_elements * block_bytes
            if offset % alignment or start + size > len(self._data):
                raise ModelLoadError(
                    f"tensor {name!r} lies at bytes {start} to {start + size} of a file of {len(self._data)} bytes; "
                    "the file is cut short or broken"
                )
            tensors[name] = GGUFTensor(name, shape, kind, start, size)
        return tensors

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        num_dimensions = self._number("<I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise ModelLoadError(f"tensor {name!r} has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self._number("<Q") for _ in range(num_dimensions))[::-1]
        if 0 in shape:
            raise ModelLoadError(f"tensor {name!r} is empty: {shape}")
        code = self._number("<I")
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise ModelLoadError(f"tensor {name!r} is of the unknown type {code}") from None
        return name, shape, kind, self._number("<Q")

    def _value(self, key: str, code: int) -> Any:
        if code == _STRING:
            return self._string()
        if code == _ARRAY:
            return self._array(key, self._number("<I"), self._number("<Q"))
        if code not in _SCALARS:
            raise ModelLoadError(f"metadata {key!r} is of the unknown type {code}")
        return np.frombuffer(self._take(_SCALARS[code].itemsize), _SCALARS[code])[0].item()

    def _array(self, key: str, code: int, count: int) -> Any:
        if code == _STRING:
            self._expect(count, 8, f"strings in {key!r}")
            return [self._string() for _ in range(count)]
        if code not in _SCALARS:
            raise ModelLoadError(f"metadata {key!r} is an array of the unsupported type {code}")
        item_size = _SCALARS[code].itemsize
        self._expect(count, item_size, f"elements in {key!r}")
        return np.frombuffer(self._take(count * item_size), _SCALARS[code])

    def _string(self) -> str:
        return bytes(self._take(self._number("<Q"))).decode("utf-8")

    def _number(self, form: str) -> int:
        value: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return value

    def _take(self, count: int) -> memoryview:
        self._expect(count, 1, "bytes")
        self._position += count
        return self._data[self._position - count : self._position]

    def _expect(self, count: int, item_size: int, what: str) -> None:
        left = len(self._data) - self._position
        if count * item_size > left:
            raise ModelLoadError(
                f"byte {self._position} announces {count} {what}, but only {left} bytes follow; cut short or broken"
            )
