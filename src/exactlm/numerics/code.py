"""Fixed-point codes of run-time values: clause 2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError

INFINITY_BITS = 0x7F800000
TINY_BITS = 0x0D800000  # 2^-100
TINY = np.float32(2.0**-100)
CODE_MAX = 32639


def absmax_bits(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Largest magnitude along the last axis as a bit pattern; NumericError if one is not finite. Clause 2.1."""
    pattern = np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)
    m = pattern.max(axis=-1)
    if np.any(m >= INFINITY_BITS):
        raise NumericError("a value is NaN or infinite where spec/numerics.md 2.1 needs finite ones")
    return np.asarray(m, np.uint32)


def code16_exponent(m: NDArray[np.uint32]) -> NDArray[np.int32]:
    """The k of clause 2.2 for magnitudes of at least 2^-100."""
    k = (m >> np.uint32(23)).astype(np.int32) - 127 - 14
    scaled = np.ldexp(m.view(np.float32), -k)
    return np.asarray(k + (scaled > CODE_MAX), np.int32)


def code16(x: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Codes [..., n] and scales [...] of rows [..., n]: x ~ code * scale. Clause 2.2."""
    m = absmax_bits(x)
    is_zero = m < TINY_BITS
    k = code16_exponent(np.where(is_zero, np.uint32(0x3F800000), m))
    scaled = x * np.ldexp(np.float32(1), -k)[..., None]
    codes = np.where(is_zero[..., None], 0, np.rint(scaled)).astype(np.int16)
    scale = np.where(is_zero, np.float32(0), np.ldexp(np.float32(1), k))
    return codes, scale.astype(np.float32)


def code8(x: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """8-bit codes (held in int16) and scales, for the 8-bit KV cache. Clause 2.4."""
    bits = absmax_bits(x)
    is_zero = bits < TINY_BITS
    m = np.where(is_zero, np.float32(1), bits.view(np.float32)).astype(np.float32)
    inverse = np.float32(127) / m
    codes = np.clip(np.rint(x * inverse[..., None]), -127, 127)
    scale = np.where(is_zero, np.float32(0), m / np.float32(127))
    return np.where(is_zero[..., None], 0, codes).astype(np.int16), scale.astype(np.float32)


def limbs(codes: NDArray[np.int16]) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """(hi, lo) with code = 256*hi + lo. Clause 2.3."""
    q = codes.astype(np.int32)
    lo = ((q + 128) & 255) - 128
    return ((q - lo) >> 8).astype(np.int8), lo.astype(np.int8)
