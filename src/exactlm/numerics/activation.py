"""exp2, SwiGLU, ln and log-probabilities from basic operations: clauses 9 and 10."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError
from exactlm.numerics.constant import EXP2, LN2, LOG2E, SQRT2


def exp2(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """2^x, x limited to [-126, 126]. Clause 9.1."""
    x = np.clip(x, np.float32(-126), np.float32(126)).astype(np.float32)
    n = np.floor(x)
    f = x - n
    y = np.full_like(x, EXP2[6])
    for k in range(5, -1, -1):
        y = y * f
        y = y + EXP2[k]
    return np.asarray(y * np.ldexp(np.float32(1), n.astype(np.int32)), np.float32)


def swiglu(gate: NDArray[np.float32], up: NDArray[np.float32]) -> NDArray[np.float32]:
    """silu(gate) * up. Clause 9.2."""
    denominator = np.float32(1) + exp2(gate * -LOG2E)
    return np.asarray((gate / denominator) * up, np.float32)


def ln_q40(s: NDArray[np.int64]) -> NDArray[np.float64]:
    """ln(s / 2^40) in fp64 for 2^40 <= s < 2^62. Clause 10.5."""
    mantissa, exponent = np.frexp(s.astype(np.float64))
    m, k = mantissa * 2.0, exponent - 1
    is_high = m > SQRT2
    m, k = np.where(is_high, m / 2.0, m), np.where(is_high, k + 1, k)
    z = (m - 1.0) / (m + 1.0)
    w = z * z
    y = np.full_like(z, 1.0 / 23.0)
    for i in range(10, -1, -1):
        y = y * w
        y = y + 1.0 / (2 * i + 1)
    return np.asarray((k - 40).astype(np.float64) * LN2 + (z + z) * y)


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities [..., V] of logits [..., V], never above 0. Clause 10.4."""
    if not np.all(np.isfinite(logits)):
        raise NumericError("a logit is NaN or infinite")
    difference = logits - logits.max(axis=-1, keepdims=True)
    e = exp2(difference * LOG2E).astype(np.float64)
    s = np.rint(e * 2.0**40).astype(np.int64).sum(axis=-1)
    return np.asarray(difference.astype(np.float64) - ln_q40(s)[..., None])


def argmax(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Largest logit along the last axis, the lowest id of equals. Clause 10.3."""
    if not np.all(np.isfinite(logits)):
        raise NumericError("a logit is NaN or infinite")
    return np.asarray(np.argmax(logits, axis=-1), np.int64)  # NumPy returns the first of equal values
