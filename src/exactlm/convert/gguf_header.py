"""A bounds-checked reader of GGUF headers (v2, v3): metadata and where each tensor lies.

Untrusted input: counts, lengths and offsets are Python integers checked against the file before anything is allocated. Raises
CheckpointError naming the file, the key or tensor and the value. Knows nothing of architectures or of quantised blocks' meaning.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
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
MAX_ITEMS = 1 << 24  # elements of one metadata array: a vocabulary is far smaller
MAX_VALUES = 1 << 26  # elements of all metadata together
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


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
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


class _Cursor:
    """Reads forward through the mapped file and never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self.at, self.size = path, data, 0, len(data)
        self._values = 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what}")

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            raise self.fail(f"{what} needs {count} bytes at {self.at}, the file has {self.size}: it was cut or is damaged")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, code: str, what: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def string(self, what: str) -> str:
        length = self.number("<Q", f"the length of {what}")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            if kind == 7 and self._data[self.at : self.at + 1] not in (b"\0", b"\1"):
                raise self.fail(f"{what} is a truth value that is neither 0 nor 1")
            return self.number(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind != ARRAY:
            raise self.fail(f"{what} has type {kind}, which GGUF does not define")
        if depth >= MAX_DEPTH:
            raise self.fail(f"{what} nests arrays more than {MAX_DEPTH} deep")
        item, count = self.number("<I", f"the type of {what}"), self.number("<Q", f"the length of {what}")
        self._count(count, what)
        if item in SCALARS and item != 7:
            code = SCALARS[item]
            raw = self.take(count * struct.calcsize(code), what)
            return list(struct.unpack(f"<{count}{code[1]}", raw))
        least = {STRING: 8, ARRAY: 12}.get(item, 1)
        if count * least > self.size - self.at:
            raise self.fail(f"{what} says it has {count} elements, the file has {self.size} bytes")
        return [self.value(item, what, depth + 1) for _ in range(count)]

    def _count(self, count: int, what: str) -> None:
        self._values += count
        if count > MAX_ITEMS or self._values > MAX_VALUES:
            raise self.fail(f"{what} says it has {count} elements, more than this reader accepts ({MAX_ITEMS})")


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
        why = "a big-endian file, which is not supported" if swapped in VERSIONS else f"only versions {VERSIONS} are read"
        raise cursor.fail(f"GGUF version {version}: {why}")
    num_tensors, num_keys = cursor.number("<Q", "the number of tensors"), cursor.number("<Q", "the number of keys")
    # A key takes at least 8 + 1 + 4 + 1 bytes, a tensor 8 + 1 + 4 + 8 + 4 + 8.
    if num_keys * 14 + num_tensors * 33 > cursor.size:
        raise cursor.fail(f"says it has {num_keys} keys and {num_tensors} tensors, more than its {cursor.size} bytes can hold")
    metadata = _read_metadata(cursor, num_keys)
    tensors = _read_tensors(cursor, num_tensors, _alignment(cursor, metadata))
    return GgufHeader(metadata, tensors), data


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string("a key")
        if not key or len(key) > 65535 or key in metadata:
            raise cursor.fail(f"key {key[:80]!r} is {'doubled' if key in metadata else 'empty or too long'}")
        metadata[key] = cursor.value(cursor.number("<I", f"the type of {key!r}"), f"the value of {key!r}")
    return metadata


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment={alignment!r} is not a power of two up to {MAX_ALIGNMENT}")
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    found: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]] = []
    names: set[str] = set()
    for _ in range(count):
        name = cursor.string("a tensor name")
        if name in names:
            raise cursor.fail(f"tensor {name[:80]!r} stands twice")
        names.add(name)
        found.append((name, *_read_tensor(cursor, name, alignment)))
    start = -(-cursor.at // alignment) * alignment
    return _place(cursor, found, start)


def _read_tensor(cursor: _Cursor, name: str, alignment: int) -> tuple[tuple[int, ...], GGMLQuantizationType, int, int]:
    dimensions = cursor.number("<I", f"the dimensions of {name!r}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name!r} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    sizes = [cursor.number("<Q", f"a size of {name!r}") for _ in range(dimensions)]
    number = cursor.number("<I", f"the type of {name!r}")
    offset = cursor.number("<Q", f"the offset of {name!r}")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise cursor.fail(f"tensor {name!r} has type {number}, which is not a known GGML type") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    values = math.prod(sizes)  # Python integers: cannot wrap
    if 0 in sizes or sizes[0] % block:
        raise cursor.fail(f"tensor {name!r} has sizes {sizes}; rows of {kind.name} are whole blocks of {block}")
    if offset % alignment:
        raise cursor.fail(f"tensor {name!r} lies at offset {offset}, not a multiple of the alignment {alignment}")
    return tuple(reversed(sizes)), kind, offset, values // block * block_bytes


def _place(
    cursor: _Cursor, found: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]], start: int
) -> dict[str, TensorInfo]:
    end_of_last, last = start, ""
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset, size in sorted(found, key=lambda t: t[3]):
        begin = start + offset
        if begin + size > cursor.size:
            raise cursor.fail(f"tensor {name!r} ends at byte {begin + size}, the file has {cursor.size}: it was cut or is damaged")
        if begin < end_of_last:
            raise cursor.fail(f"tensor {name!r} begins at byte {begin}, inside {last!r}")
        end_of_last, last = begin + size, name
        tensors[name] = TensorInfo(name, shape, kind, begin, begin + size)
    return tensors
