"""From the tensors of a checkpoint to the stored codes of one tensor of the plan, and what that cost.

Knows the layout of the model file, not the formats of checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.convert.source import SourceTensor
from exactlm.errors import CheckpointError, NumericError
from exactlm.models.weights import Matrix, Vector
from exactlm.numerics.code import absmax_bits
from exactlm.numerics.layout import TILE, flat_multipliers, pack_scales, pack_w8, pack_w16
from exactlm.numerics.weight import W8, W16, quantise_w8, quantise_w16, w8_from_q8_0

F32 = NDArray[np.float32]
BLOCK_VALUES = 1 << 22  # values quantised at once: bounds the memory of a large tensor


@dataclass(frozen=True)
class Stored:
    """Arrays for the model file by name, and the report of one tensor."""

    arrays: dict[str, NDArray[np.generic]]
    report: dict[str, Any]


class _Error:
    """Sums of squares of what quantisation changed, block by block. The report is part of the model's bytes."""

    def __init__(self) -> None:
        self.noise = self.signal = 0.0
        self.exact = True

    def add(self, before: F32, after: F32) -> None:
        difference = (after - before).ravel()
        self.noise += _sum_squares(difference)
        self.signal += _sum_squares(before.ravel())
        self.exact = self.exact and not difference.any()

    def relative(self) -> float:
        return float(f"{math.sqrt(self.noise / self.signal):.3e}") if self.signal else 0.0


def _sum_squares(x: F32) -> float:
    """In an order of its own, halves added elementwise: NumPy's sums may follow its version and the machine."""
    squares = x.astype(np.float64)
    squares *= squares
    while len(squares) > 1:
        half = len(squares) // 2
        rest = squares[2 * half :]
        squares = squares[:half] + squares[half : 2 * half]
        squares[: len(rest)] += rest
    return float(squares[0])


def store_vector(item: Vector, sources: Mapping[str, SourceTensor]) -> Stored:
    """A gain or bias in fp32, zero-filled to whole tiles."""
    parts = [_read(sources[name]).reshape(-1) for name in item.sources]
    values = np.concatenate(parts)
    if len(values) != item.n:
        raise CheckpointError(f"{sources[item.sources[0]].place}: {len(values)} values, config asks for {item.n}")
    padded = np.zeros(-(-item.n // TILE) * TILE, np.float32)
    padded[: item.n] = values
    return Stored({item.name: padded}, {"sources": _describe(item, sources), "stored": "F32", "exact": True})


def store_matrix(item: Matrix, sources: Mapping[str, SourceTensor], precision: str) -> Stored:
    """Codes of the rows of all sources, one after another."""
    error = _Error()
    rounded_rows = 0
    parts: list[W16 | W8] = []
    for name in item.sources:
        tensor = sources[name]
        kept = tensor.read_q8_0() if precision == "int8" else None
        if kept is None:
            parts.append(_quantise(_read(tensor), precision, error))
            continue
        part, rounded = _keep_q8_0(tensor, *kept)
        rounded_rows += rounded
        parts.append(part)
        _measure(_read(tensor), part, error)
    report = {
        "sources": _describe(item, sources),
        "stored": precision,
        "relative_error": error.relative(),
        "exact": error.exact,
    }
    if rounded_rows:
        report["rows_with_rounded_scales"] = rounded_rows
    return Stored(_pack(item.name, parts), report)


def _quantise(w: F32, precision: str, error: _Error) -> W16 | W8:
    quantise = quantise_w16 if precision == "fp16" else quantise_w8
    step = max(1, BLOCK_VALUES // w.shape[1])
    whole = _join([quantise(w[begin : begin + step]) for begin in range(0, len(w), step)])
    _measure(w, whole, error)
    return whole


def _measure(w: F32, stored: W16 | W8, error: _Error) -> None:
    step = max(1, BLOCK_VALUES // w.shape[1])
    for begin in range(0, len(w), step):
        part = _slice(stored, begin, begin + step)
        error.add(w[begin : begin + step], part.dequantise()[:, : w.shape[1]])


def _slice(stored: W16 | W8, begin: int, end: int) -> W16 | W8:
    codes, scales = stored.codes[begin:end], stored.scales[begin:end]
    if isinstance(stored, W16):
        return W16(np.asarray(codes, np.int16), scales)
    return W8(np.asarray(codes, np.int8), stored.multipliers[begin:end], scales)


def _join(parts: list[W16 | W8]) -> W16 | W8:
    if len(parts) == 1:
        return parts[0]
    scales = np.concatenate([p.scales for p in parts])
    if isinstance(parts[0], W16):
        return W16(np.concatenate([p.codes for p in parts if isinstance(p, W16)]), scales)
    eights = [p for p in parts if isinstance(p, W8)]
    return W8(np.concatenate([p.codes for p in eights]), np.concatenate([p.multipliers for p in eights]), scales)


def _pack(name: str, parts: list[W16 | W8]) -> dict[str, NDArray[np.generic]]:
    whole = _join(parts)
    scales = {f"{name}.scales": pack_scales(whole.scales)}
    if isinstance(whole, W16):
        return {f"{name}.codes": pack_w16(whole), **scales}
    codes, multipliers = pack_w8(whole)
    return {f"{name}.codes": codes, f"{name}.multipliers": flat_multipliers(multipliers), **scales}


def _keep_q8_0(tensor: SourceTensor, codes: NDArray[np.int8], d: NDArray[np.float16]) -> tuple[W8, int]:
    try:
        return w8_from_q8_0(codes, d)
    except NumericError as error:
        raise CheckpointError(f"{tensor.place}: {error}; the checkpoint is damaged") from None


def _read(tensor: SourceTensor) -> F32:
    values = tensor.read()
    try:
        absmax_bits(values.reshape(1, -1))
    except NumericError:
        raise CheckpointError(f"{tensor.place} holds a NaN or infinity; the checkpoint is damaged") from None
    return values


def _describe(item: Matrix | Vector, sources: Mapping[str, SourceTensor]) -> dict[str, str]:
    return {name: sources[name].dtype for name in item.sources}
