"""A bounds-checked reader of GGUF headers (v2, v3): metadata and where each tensor lies.

Untrusted input: counts, lengths and offsets are Python integers checked against the file before anything is allocated.
Raises CheckpointError naming the file, the key or tensor and the value. Knows nothing of architectures or of what
quantised blocks mean.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from exactlm.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4
MAX_DEPTH = 4  # of arrays inside arrays
# The header of a file with a vocabulary of 262,144 and as many merges has 16 MB and 1.3 million values.
MAX_HEADER_BYTES = 32 << 20  # a Python string can take four times its bytes
MAX_VALUES = 1 << 21  # of all metadata arrays together: about 64 bytes each in Python
ARRAY_COST = 16  # an array inside an array takes as long to read as this many strings
MAX_ENTRIES = 1 << 14  # keys, and tensors: 256 layers have 4,000
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the file: shape with the row length last, byte range [begin, end) of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    begin: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """Values of the metadata by key, and the tensors by name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


class _Cursor:
    """Reads forward through the mapped file, never past its end nor past MAX_HEADER_BYTES."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.at, self.size = path, data, 0, len(data)
        self._values = 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what}")

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            need = f"{what} needs {count} bytes at {self.at}"
            raise self.fail(f"{need}, the file has {self.size}: it was cut or is damaged")
        if self.at + count > MAX_HEADER_BYTES:
            raise self.fail(
                f"{what} ends at byte {self.at + count}; headers of at most {MAX_HEADER_BYTES} bytes are read"
            )
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.number("<Q", what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self._array(what, depth)
        if kind not in SCALARS:
            raise self.fail(f"{what} has type {kind}, which GGUF does not define")
        if kind == BOOL and self._data[self.at : self.at + 1] not in (b"\0", b"\1"):
            raise self.fail(f"{what} is cut, or a truth value that is neither 0 nor 1")
        return self.number(SCALARS[kind], what)

    def _array(self, what: str, depth: int) -> list[Any]:
        if depth >= MAX_DEPTH:
            raise self.fail(f"{what} nests arrays more than {MAX_DEPTH} deep")
        item, count = self.number("<I", what), self.number("<Q", what)
        self._values += count * ARRAY_COST if item == ARRAY else count
        if self._values > MAX_VALUES:
            raise self.fail(f"{what} has {count} elements; at most {MAX_VALUES} are read from a file")
        if item in SCALARS and item != BOOL:
            code = SCALARS[item]
            return list(struct.unpack(f"<{count}{code[1]}", self.take(count * struct.calcsize(code), what)))
        if count * {STRING: 8, ARRAY: 12}.get(item, 1) > self.size - self.at:
            raise self.fail(
                f"{what} says it has {count} elements, the file has {self.size} bytes: it was cut or is damaged"
            )
        return [self.value(item, what, depth + 1) for _ in range(count)]


def read_header(path: Path) -> tuple[GgufHeader, mmap.mmap]:
    """Header of a GGUF file, and the mapped file."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    cursor = _Cursor(path, data)
    if cursor.take(min(4, cursor.size), "the magic number") != MAGIC:
        raise cursor.fail("does not begin with GGUF: it is not a GGUF file")
    version = cursor.number("<I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = (
            "a big-endian file, which is not supported" if swapped in VERSIONS else f"only versions {VERSIONS} are read"
        )
        raise cursor.fail(f"GGUF version {version}: {why}")
    num_tensors, num_keys = cursor.number("<Q", "the number of tensors"), cursor.number("<Q", "the number of keys")
    # A key takes at least 8 + 1 + 4 + 1 bytes, a tensor 8 + 1 + 4 + 8 + 4 + 8.
    if num_keys * 14 + num_tensors * 33 > cursor.size or max(num_keys, num_tensors) > MAX_ENTRIES:
        room = f"more than its {cursor.size} bytes can hold, or than the {MAX_ENTRIES} that are read"
        raise cursor.fail(f"says it has {num_keys} keys and {num_tensors} tensors, {room}")
    metadata = _read_metadata(cursor, num_keys)
    tensors = _read_tensors(cursor, num_tensors, _alignment(cursor, metadata))
    return GgufHeader(metadata, tensors), data


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a key")
        if not key or len(key) > 65535 or key in metadata:
            raise cursor.fail(f"key {key[:80]!r} {'stands twice' if key in metadata else 'is empty or too long'}")
        what = f"key {key[:80]!r}"
        metadata[key] = cursor.value(cursor.number("<I", what), what)
    return metadata


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment={alignment!r:.100} is not a power of two up to {MAX_ALIGNMENT}")
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    for _ in range(count):
        info = _read_tensor(cursor, alignment)
        if info.name in found:
            raise cursor.fail(f"tensor {info.name[:80]!r} stands twice")
        found[info.name] = info
    return _place(cursor, found, -(-cursor.at // alignment) * alignment)


def _read_tensor(cursor: _Cursor, alignment: int) -> TensorInfo:
    """A tensor whose range still counts from the beginning of the data."""
    name = cursor.string("a tensor name")
    what = f"tensor {name[:80]!r}"
    dimensions = cursor.number("<I", what)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(f"{what} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    sizes = [cursor.number("<Q", what) for _ in range(dimensions)]
    number, offset = cursor.number("<I", what), cursor.number("<Q", what)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise cursor.fail(f"{what} has type {number}, which is not a known GGML type") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in sizes or sizes[0] % block:
        raise cursor.fail(f"{what} has sizes {sizes}; rows of {kind.name} are whole blocks of {block}")
    if offset % alignment:
        raise cursor.fail(f"{what} lies at offset {offset}, not a multiple of the alignment {alignment}")
    size = math.prod(sizes) // block * block_bytes  # Python integers: cannot wrap
    return TensorInfo(name, tuple(reversed(sizes)), kind, offset, offset + size)


def _place(cursor: _Cursor, found: Mapping[str, TensorInfo], start: int) -> dict[str, TensorInfo]:
    """The same tensors with ranges in the file, none outside it or inside another."""
    end_of_last, last = start, ""
    placed: dict[str, TensorInfo] = {}
    for name, info in sorted(found.items(), key=lambda item: item[1].begin):
        begin, end = start + info.begin, start + info.end
        if end > cursor.size:
            what = f"tensor {name[:80]!r} ends at byte {end}"
            raise cursor.fail(f"{what}, the file has {cursor.size}: it was cut or is damaged")
        if begin < end_of_last:
            raise cursor.fail(f"tensor {name[:80]!r} begins at byte {begin}, inside {last[:80]!r}")
        end_of_last, last = end, name
        placed[name] = TensorInfo(name, info.shape, info.kind, begin, end)
    return placed
