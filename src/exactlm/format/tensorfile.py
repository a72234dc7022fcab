"""A bounds-checked reader of safetensors files: header into Python integers, data as views of the mapped file.

Untrusted input: every size is checked against the file before anything is allocated. Raises FormatError naming file, tensor and value.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import FormatError

HEADER_LIMIT = 100 << 20  # the limit of the format itself
MAX_DIMENSIONS = 8
ITEM_TYPES = {
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
}


@dataclass(frozen=True)
class Entry:
    """One tensor: begin and end are offsets into the data part."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFile:
    """An open safetensors file. BF16 arrays come back as the uint16 patterns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._size = path.stat().st_size
        except OSError as error:
            raise FormatError(f"{path}: cannot be opened: {error.strerror}") from None
        self._start, self._entries = self._read_header()
        self._data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r", offset=0) if self._size else np.zeros(0, np.uint8)

    def names(self) -> list[str]:
        """Names of the tensors, in the order of the header."""
        return list(self._entries)

    def dtype(self, name: str) -> str:
        return self._entries[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def array(self, name: str) -> NDArray[np.generic]:
        """The tensor as a read-only view of the mapped file."""
        entry = self._entries[name]
        raw = np.asarray(self._data[self._start + entry.begin : self._start + entry.end])
        return raw.view(ITEM_TYPES[entry.dtype]).reshape(entry.shape)

    def _read_header(self) -> tuple[int, dict[str, Entry]]:
        with self.path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if self._size < 8 or length > self._size - 8:
                raise FormatError(f"{self.path}: has {self._size} bytes, its header alone needs {length + 8}; it was cut or is not safetensors")
            if length > HEADER_LIMIT:
                raise FormatError(f"{self.path}: header of {length} bytes is more than the {HEADER_LIMIT} that safetensors allows")
            text = file.read(length)
        header = self._parse(text)
        entries = {name: self._entry(name, value) for name, value in header.items() if name != "__metadata__"}
        self._check_ranges(entries, 8 + length)
        return 8 + length, entries

    def _parse(self, text: bytes) -> dict[str, Any]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            result = dict(pairs)
            if len(result) != len(pairs):
                names = [name for name, _ in pairs]
                double = next(name for name in names if names.count(name) > 1)
                raise FormatError(f"{self.path}: name {double!r} stands twice in the header")
            return result

        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{self.path}: header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise FormatError(f"{self.path}: header is a {type(header).__name__}, not an object")
        return header

    def _entry(self, name: str, value: Any) -> Entry:
        where = f"{self.path}: tensor {name!r}"
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"{where}: must have exactly dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if dtype not in ITEM_TYPES:
            raise FormatError(f"{where}: dtype {dtype!r} is not one of {', '.join(ITEM_TYPES)}")
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n for n in shape):
            raise FormatError(f"{where}: shape {shape!r:.100} is not a list of at most {MAX_DIMENSIONS} sizes")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and 0 <= n for n in offsets):
            raise FormatError(f"{where}: data_offsets {offsets!r:.100} are not two positions")
        begin, end = offsets
        expected = math.prod(shape) * np.dtype(ITEM_TYPES[dtype]).itemsize
        if end - begin != expected:
            raise FormatError(f"{where}: {dtype} {shape} takes {expected} bytes, data_offsets {offsets} give {end - begin}")
        return Entry(dtype, tuple(shape), begin, end)

    def _check_ranges(self, entries: dict[str, Entry], start: int) -> None:
        at = 0
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != at:
                kind = "overlaps the one before it" if entry.begin < at else "leaves a hole before it"
                raise FormatError(f"{self.path}: tensor {name!r} begins at {entry.begin} and {kind}, which ends at {at}")
            at = entry.end
        if start + at != self._size:
            raise FormatError(f"{self.path}: has {self._size} bytes, its header asks for {start + at}; it was cut or grew")
