"""Philox4x64-10, the counter-based generator: random words as a function of key and counter, without a state.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). spec/sampling.md 6.1.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
MULTIPLIER_0, MULTIPLIER_1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
WEYL_0, WEYL_1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
ROUNDS = 10


def philox4x64(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four words below 2^64 from a key and a counter of such words, least significant first."""
    k0, k1 = key
    x0, x1, x2, x3 = counter
    for _ in range(ROUNDS):
        a, b = MULTIPLIER_0 * x0, MULTIPLIER_1 * x2
        x0, x1, x2, x3 = (b >> 64) ^ x1 ^ k0, b & MASK, (a >> 64) ^ x3 ^ k1, a & MASK
        k0, k1 = (k0 + WEYL_0) & MASK, (k1 + WEYL_1) & MASK
    return x0, x1, x2, x3


def draw(seed: int, choice: int, position: int) -> int:
    """The 64 bits that decide the token at `position` of choice `choice`. Clause 6.1."""
    return philox4x64((seed, 0), (position, choice, 0, 0))[0]
