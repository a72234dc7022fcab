"""A bounds-checked reader of safetensors files: header into Python integers, data as views of the mapped file.

Untrusted input: every size is checked against the file before anything is allocated. Raises FormatError naming file,
tensor and value. Knows nothing of models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import FormatError
from exactlm.format.json_object import JSON_LIMIT, parse_object

HEADER_LIMIT = JSON_LIMIT  # the format allows 100 MB, which take 2 GB to parse; a model of 1000 layers needs 1 MB
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
            self._start, self._entries = self._read_header()
            self._data: NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        except OSError as error:
            raise FormatError(f"{path}: cannot be opened: {error.strerror}") from None

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
                need = f"has {self._size} bytes, its header alone needs {length + 8}"
                raise FormatError(f"{self.path}: {need}; it was cut or is not safetensors")
            if length > HEADER_LIMIT:
                raise FormatError(f"{self.path}: header of {length} bytes; at most {HEADER_LIMIT} are read")
            text = file.read(length)
        header = parse_object(text, f"{self.path}: header", FormatError)
        entries = {name: self._entry(name, value) for name, value in header.items() if name != "__metadata__"}
        self._check_ranges(entries, 8 + length)
        return 8 + length, entries

    def _entry(self, name: str, value: Any) -> Entry:
        where = f"{self.path}: tensor {name!r:.200}"
        if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"{where}: must have exactly dtype, shape and data_offsets")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in ITEM_TYPES:
            raise FormatError(f"{where}: dtype {dtype!r:.100} is not one of {', '.join(ITEM_TYPES)}")
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_size, shape)):
            raise FormatError(f"{where}: shape {shape!r:.100} is not a list of at most {MAX_DIMENSIONS} sizes")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
            raise FormatError(f"{where}: data_offsets {offsets!r:.100} are not two positions")
        begin, end = offsets
        expected = math.prod(shape) * np.dtype(ITEM_TYPES[dtype]).itemsize  # Python integers: cannot wrap
        if end - begin != expected:
            given = f"data_offsets {offsets} give {end - begin}"
            raise FormatError(f"{where}: {dtype} {shape} takes {expected} bytes, {given}")
        return Entry(dtype, tuple(shape), begin, end)

    def _check_ranges(self, entries: dict[str, Entry], start: int) -> None:
        at = 0
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != at:
                kind = "overlaps the one before it" if entry.begin < at else "leaves a hole before it"
                where = f"{self.path}: tensor {name!r:.200} begins at {entry.begin}"
                raise FormatError(f"{where} and {kind}, which ends at {at}")
            at = entry.end
        if start + at != self._size:
            need = f"has {self._size} bytes, its header asks for {start + at}"
            raise FormatError(f"{self.path}: {need}; it was cut or grew")


def _is_size(value: Any) -> bool:
    """A whole number below 2^63; larger ones are refused before they are multiplied or printed."""
    return type(value) is int and value >> 63 == 0
