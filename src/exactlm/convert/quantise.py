"""From the tensors of a checkpoint to the stored codes of one tensor of the plan, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.convert.source import SourceTensor
from exactlm.errors import CheckpointError, NumericError
from exactlm.models.weights import Matrix, Vector
from exactlm.numerics.code import absmax_bits
from exactlm.numerics.layout import TILE, pack_scales, pack_w8, pack_w16
from exactlm.numerics.weight import W8, W16, quantise_w8, quantise_w16, w8_from_q8_0

F32 = NDArray[np.float32]
BLOCK_VALUES = 1 << 22  # values quantised at once: bounds the memory of a large tensor


@dataclass(frozen=True)
class Stored:
    """Arrays for the model file by name, and the report of one tensor."""

    arrays: dict[str, NDArray[np.generic]]
    report: dict[str, Any]


class _Error:
    """Sums of squares of what quantisation changed, block by block."""

    def __init__(self) -> None:
        self.noise = self.signal = 0.0
        self.exact = True

    def add(self, before: F32, after: F32) -> None:
        difference = (after - before).astype(np.float64).ravel()
        values = before.astype(np.float64).ravel()
        # Row by row in a fixed order: NumPy's pairwise sum does not depend on threads or alignment.
        self.noise += float(np.sum(difference * difference))
        self.signal += float(np.sum(values * values))
        self.exact = self.exact and not difference.any()

    def relative(self) -> float:
        return float(f"{(self.noise / self.signal) ** 0.5:.3e}") if self.signal else 0.0


def store_vector(item: Vector, sources: Mapping[str, SourceTensor]) -> Stored:
    """A gain or bias in fp32, zero-filled to whole tiles."""
    parts = [_read(sources[name]).reshape(-1) for name in item.sources]
    values = np.concatenate(parts)
    if len(values) != item.n:
        raise CheckpointError(f"{item.sources[0]}: {len(values)} values in all, config asks for {item.n}")
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
        if kept is not None:
            part, rounded = _keep_q8_0(name, *kept)
            rounded_rows += rounded
            parts.append(part)
            if rounded:
                error.add(_read(tensor), part.dequantise()[:, : item.k])
            continue
        parts.append(_quantise(_read(tensor), precision, error))
    report = {"sources": _describe(item, sources), "stored": precision, "relative_error": error.relative(), "exact": error.exact}
    if rounded_rows:
        report["rows_with_rounded_scales"] = rounded_rows
    return Stored(_pack(item.name, parts), report)


def _quantise(w: F32, precision: str, error: _Error) -> W16 | W8:
    quantise = quantise_w16 if precision == "fp16" else quantise_w8
    step = max(1, BLOCK_VALUES // w.shape[1])
    blocks: list[W16 | W8] = []
    for begin in range(0, len(w), step):
        rows = w[begin : begin + step]
        block = quantise(rows)
        error.add(rows, block.dequantise()[:, : w.shape[1]])
        blocks.append(block)
    return _join(blocks)


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
    return {f"{name}.codes": codes, f"{name}.multipliers": multipliers, **scales}


def _keep_q8_0(name: str, codes: NDArray[np.int8], d: NDArray[np.float16]) -> tuple[W8, int]:
    try:
        return w8_from_q8_0(codes, d)
    except NumericError as error:
        raise CheckpointError(f"{name}: {error}") from None


def _read(tensor: SourceTensor) -> F32:
    values = tensor.read()
    try:
        absmax_bits(values.reshape(1, -1))
    except NumericError:
        raise CheckpointError(f"{tensor.name}: holds a NaN or infinity; the checkpoint is damaged") from None
    return values


def _describe(item: Matrix | Vector, sources: Mapping[str, SourceTensor]) -> dict[str, str]:
    return {name: sources[name].dtype for name in item.sources}
