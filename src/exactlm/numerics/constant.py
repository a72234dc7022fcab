"""Constants of spec/numerics.md clause 12, and the exact decimal arithmetic that derives values from a
configuration."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np

PRECISION = 60  # decimal digits of every derived constant

# Minimax polynomial of 2^f on [0, 1): clause 12.1.
EXP2 = tuple(
    np.float32(float.fromhex(h))
    for h in (
        "0x1p+0",
        "0x1.62e42ap-1",
        "0x1.ebfd9ep-3",
        "0x1.c685p-5",
        "0x1.3d28p-7",
        "0x1.461956p-10",
        "0x1.c72114p-13",
    )
)
LOG2E = np.float32(float.fromhex("0x1.715476p+0"))
LN2 = float.fromhex("0x1.62e42fefa39efp-1")
SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")
# Taylor coefficients of sin and cos of a quarter turn in Q60: clause 12.2.
SIN = (
    1811004864519280711,
    -744745899218905439,
    91879342557802013,
    -5397695021890950,
    184976092165948,
    -4149183757585,
    65626285697,
    -771077950,
    6994701,
    -50464,
    296,
)
COS = (
    1152921504606846976,
    -1422359894497287770,
    292461030722154733,
    -24053955633020904,
    1059834939193175,
    -29055976611915,
    543126883801,
    -7363252037,
    75700401,
    -610403,
    3963,
)


@lru_cache(maxsize=1)
def pi() -> Decimal:
    """Pi to PRECISION digits, by Machin's formula in integers."""
    unity: int = 10 ** (PRECISION + 10)

    def arctan_inverse(x: int) -> int:
        total = term = unity // x
        n, sign = 3, -1
        while term:
            term //= x * x
            total += sign * (term // n)
            n, sign = n + 2, -sign
        return total

    scaled = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    with localcontext() as context:
        context.prec = PRECISION
        return Decimal(scaled) / Decimal(unity)


def to_float32(value: Decimal) -> np.float32:
    """The fp32 nearest to an exact decimal, ties to even, without passing through fp64."""
    exact = Fraction(value)
    magnitude = abs(exact) or Fraction(1)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    nearest: np.float32 = np.float32(float(round(exact / unit) * unit))
    return nearest  # Fraction's round() is to nearest, ties to even


@lru_cache
def softmax_scale(head_dim: int) -> np.float32:
    """c = RN(log2(e) / sqrt(d)): clause 8.1."""
    with localcontext() as context:
        context.prec = PRECISION
        return to_float32(1 / (Decimal(2).ln() * Decimal(head_dim).sqrt()))
