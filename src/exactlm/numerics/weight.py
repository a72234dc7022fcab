"""Codes of weights, made at conversion: clause 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError
from exactlm.numerics.code import TINY_BITS, absmax_bits, code16

GROUP = 32
MULTIPLIER_MAX = 65535


@dataclass(frozen=True)
class W16:
    """codes int16 [N, K], scales fp32 [N]: w = code * scale."""

    codes: NDArray[np.int16]
    scales: NDArray[np.float32]

    def dequantise(self) -> NDArray[np.float32]:
        return self.codes.astype(np.float32) * self.scales[:, None]


@dataclass(frozen=True)
class W8:
    """codes int8 [N, K32], multipliers uint16 [N, K32/32], scales fp32 [N]: w = code * multiplier * scale."""

    codes: NDArray[np.int8]
    multipliers: NDArray[np.uint16]
    scales: NDArray[np.float32]

    def dequantise(self) -> NDArray[np.float32]:
        factor = np.repeat(self.multipliers.astype(np.float32), GROUP, axis=1)
        return self.codes.astype(np.float32) * factor * self.scales[:, None]


def quantise_w16(w: NDArray[np.float32]) -> W16:
    """Clause 3.1; w is [N, K]."""
    return W16(*code16(w))


def quantise_w8(w: NDArray[np.float32]) -> W8:
    """Clause 3.2; w is [N, K], codes come back with K padded to a multiple of 32."""
    n, k = w.shape
    groups = -(-k // GROUP)
    padded = np.zeros((n, groups * GROUP), np.float32)
    padded[:, :k] = w
    m = absmax_bits(padded)
    is_zero = m < TINY_BITS
    row_max = np.where(is_zero, np.float32(1), m.view(np.float32)).astype(np.float64)
    # ceil(m / (127 * 2^r)) <= 65535 exactly when m <= 65535 * 127 * 2^r: powers of two and 24-bit integers, exact in
    # fp64.
    _, exponent = np.frexp(row_max / (MULTIPLIER_MAX * 127))
    r = exponent.astype(np.int32) - 1
    r = np.where(row_max <= np.ldexp(float(MULTIPLIER_MAX * 127), r - 1), r - 1, r)
    r = np.where(row_max > np.ldexp(float(MULTIPLIER_MAX * 127), r), r + 1, r)
    grouped = np.ldexp(padded.astype(np.float64), -r[:, None]).reshape(n, groups, GROUP)
    group_max = np.abs(grouped).max(axis=2)
    multipliers = _ceil_div127(group_max)
    divisor = np.where(multipliers == 0, 1, multipliers).astype(np.float64)
    codes = np.rint(grouped / divisor[:, :, None])
    codes = np.where((multipliers == 0)[:, :, None] | is_zero[:, None, None], 0, codes)
    multipliers = np.where(is_zero[:, None], 0, multipliers)
    scales = np.where(is_zero, np.float32(0), np.ldexp(np.float32(1), r)).astype(np.float32)
    return W8(codes.reshape(n, -1).astype(np.int8), multipliers.astype(np.uint16), scales)


def _ceil_div127(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """ceil(x / 127) exactly, for x >= 0 below 2^23."""
    guess = np.floor(x / 127.0)
    guess = np.where(guess * 127.0 > x, guess - 1, guess)  # the products are exact integers, so the comparisons are too
    guess = np.where((guess + 1) * 127.0 <= x, guess + 1, guess)
    return np.asarray(guess + (guess * 127.0 < x), np.int64)


def w8_from_q8_0(codes: NDArray[np.int8], d: NDArray[np.float16]) -> tuple[W8, int]:
    """Clause 3.3: GGUF Q8_0 codes [N, K] and scales [N, K/32], kept as they are; and the number of rows whose scales
    were rounded."""
    scale = d.astype(np.float64)
    if not np.all(np.isfinite(scale)) or np.any(scale < 0):
        raise NumericError("a Q8_0 scale is negative, NaN or infinite")
    unit = np.ldexp(1.0, -24)
    integers = (scale / unit).astype(np.int64)  # binary16 values are integer multiples of 2^-24 below 2^40
    lowest = np.where(integers == 0, np.int64(1) << 62, integers & -integers).min(axis=1)
    shift = np.where(integers.any(axis=1), np.frexp(lowest.astype(np.float64))[1] - 1, 0).astype(np.int64)
    rounded = 0
    multipliers = np.zeros_like(integers)
    for row in range(len(integers)):
        s = int(shift[row])
        if int(integers[row].max()) >> s > MULTIPLIER_MAX:
            rounded += 1
            while np.rint(np.ldexp(integers[row].astype(np.float64), -s)).max() > MULTIPLIER_MAX:
                s += 1
        multipliers[row] = np.rint(np.ldexp(integers[row].astype(np.float64), -s)).astype(np.int64)
        shift[row] = s
    scales = np.where(integers.any(axis=1), np.ldexp(1.0, shift.astype(np.int32) - 24), 0.0).astype(np.float32)
    return W8(codes, multipliers.astype(np.uint16), scales), rounded
