"""Reads spec/vectors: the format is described in tools/make_vectors.py."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
DTYPES = ["<u1", "<i1", "<u2", "<i2", "<i4", "<i8", "<u8", "<f4", "<f8"]
Case = dict[str, NDArray[np.generic]]


def read_vectors(name: str) -> list[Case]:
    """All cases of one file."""
    data = (VECTORS / f"{name}.vec").read_bytes()
    assert data[:4] == b"EXV1"
    at, cases = 4, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        case: Case = {}
        for _ in range(count):
            (length,) = struct.unpack_from("<I", data, at)
            key = data[at + 4 : at + 4 + length].decode()
            at += 4 + length
            kind, ndim = struct.unpack_from("<II", data, at)
            shape = struct.unpack_from(f"<{ndim}Q", data, at + 8)
            at += 8 + 8 * ndim
            size = int(np.prod(shape)) * np.dtype(DTYPES[kind]).itemsize
            case[key] = np.frombuffer(data, DTYPES[kind], int(np.prod(shape)), at).reshape(shape).copy()
            at += size
        cases.append(case)
    return cases
