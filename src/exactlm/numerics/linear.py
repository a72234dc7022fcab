"""Linear layers as exact integer sums: clause 4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.numerics.weight import GROUP, W8, W16


def to_float32(acc: NDArray[np.int64]) -> NDArray[np.float32]:
    """fp32(n) of clause 1.2: NumPy converts int64 to fp32 with one rounding."""
    return acc.astype(np.float32)


def accumulate(codes: NDArray[np.int16], weight: W16 | W8) -> NDArray[np.int64]:
    """acc [T, N] of codes [T, K]: clause 4.1."""
    x = codes.astype(np.int64)
    if isinstance(weight, W16):
        return np.asarray(x @ weight.codes.astype(np.int64).T)
    padded = np.zeros((len(x), weight.codes.shape[1]), np.int64)
    padded[:, : x.shape[1]] = x
    factor = np.repeat(weight.multipliers.astype(np.int64), GROUP, axis=1)
    return np.asarray(padded @ (weight.codes.astype(np.int64) * factor).T)


def linear(
    codes: NDArray[np.int16], scales: NDArray[np.float32], weight: W16 | W8, bias: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """y [T, N] of codes [T, K] with scales [T]: clauses 4.2, 4.3."""
    y = to_float32(accumulate(codes, weight)) * weight.scales[None, :]
    y = y * scales[:, None]
    return y if bias is None else y + bias[None, :]
