"""RMS norm with an exact integer sum of squares: clause 5."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.numerics.code import TINY_BITS, absmax_bits


def rms_norm(x: NDArray[np.float32], gain: NDArray[np.float32], eps: float) -> NDArray[np.float32]:
    """y [T, D] of x [T, D]; eps in fp64. Clause 5.2."""
    m = absmax_bits(x)
    is_zero = m < TINY_BITS
    e = (m >> np.uint32(23)).astype(np.int32) - 126
    e = np.where(is_zero, 0, e)
    integers = np.rint(np.ldexp(x.astype(np.float64), (23 - e)[:, None])).astype(np.int64)
    total = (integers * integers).sum(axis=1)  # <= 2^46 * D <= 2^61
    ms = total.astype(np.float64) * np.ldexp(1.0, 2 * e - 46)
    ms = ms / np.float64(x.shape[1])
    ms = np.where(is_zero, 1.0, ms + np.float64(eps))
    r = (1.0 / np.sqrt(ms)).astype(np.float32)
    y = (x * r[:, None]) * gain[None, :]
    return np.where(is_zero[:, None], np.float32(0), y).astype(np.float32)
