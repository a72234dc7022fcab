"""Rotary embedding with integer angles, and its frequencies: clause 6."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from exactlm.numerics.constant import COS, PRECISION, SIN, pi

MASK = (1 << 64) - 1


def base_frequencies(theta: float, head_dim: int) -> list[Decimal]:
    """a_i = theta^(-2i/d) in radians per position: clause 6.1."""
    with localcontext() as context:
        context.prec = PRECISION
        return [Decimal(theta) ** (Decimal(-2 * i) / head_dim) for i in range(head_dim // 2)]


def dynamic_theta(theta: float, factor: float, original: int, length: int, head_dim: int) -> Decimal:
    """The base of dynamic scaling for a length: clause 6.5."""
    with localcontext() as context:
        context.prec = PRECISION
        stretch = Decimal(factor) * length / original - (Decimal(factor) - 1)
        return Decimal(theta) * stretch ** (Decimal(head_dim) / (head_dim - 2))


def to_turns(frequencies: list[Decimal]) -> NDArray[np.uint64]:
    """f_i = rne(2^64 * a_i / (2 pi)) mod 2^64: clause 6.1."""
    with localcontext() as context:
        context.prec = PRECISION
        turns = [int((a * 2**64 / (2 * pi())).to_integral_value(ROUND_HALF_EVEN)) & MASK for a in frequencies]
    return np.array(turns, np.uint64)


def sine_cosine(
    position: int, turns: NDArray[np.uint64], factor: np.float32
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(cos, sin) [d/2] at one position: clauses 6.2, 6.3."""
    cosine, sine = np.zeros(len(turns), np.float32), np.zeros(len(turns), np.float32)
    for i, f in enumerate(turns.tolist()):
        angle = position * f & MASK
        u = (angle << 2 & MASK) >> 4
        u2 = u * u >> 60
        a, b = SIN[10], COS[10]
        for k in range(9, -1, -1):
            a = (a * u2 >> 60) + SIN[k]
            b = (b * u2 >> 60) + COS[k]
        a = a * u >> 60
        s, c = ((a, b), (b, -a), (-a, -b), (-b, a))[angle >> 62]
        sine[i] = np.int64(s).astype(np.float32) * np.float32(2.0**-60)
        cosine[i] = np.int64(c).astype(np.float32) * np.float32(2.0**-60)
    if factor != 1:
        sine, cosine = sine * factor, cosine * factor
    return cosine, sine


def rotate(x: NDArray[np.float32], cosine: NDArray[np.float32], sine: NDArray[np.float32]) -> NDArray[np.float32]:
    """x [..., d] with cosine and sine broadcastable to [..., d/2]: clause 6.4."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([(a * cosine) - (b * sine), (b * cosine) + (a * sine)], axis=-1)


def hadamard(x: NDArray[np.float32], is_key: bool) -> NDArray[np.float32]:
    """The transform of queries and keys before an 8-bit cache: clause 7.3."""
    d = x.shape[-1]
    block = d & -d
    x = x.copy()
    h = 1
    while h < block:
        pairs = x.reshape(*x.shape[:-1], d // (2 * h), 2, h)
        a, b = pairs[..., 0, :].copy(), pairs[..., 1, :].copy()
        pairs[..., 0, :], pairs[..., 1, :] = a + b, a - b
        h *= 2
    n = block.bit_length() - 1
    scaled: NDArray[np.float32] = x * np.ldexp(np.float32(1), -((n + 1) // 2) if is_key else -(n // 2))
    return scaled
