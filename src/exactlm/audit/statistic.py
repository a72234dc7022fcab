"""Confidence intervals of what an audit counts. Knows numbers only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Share:
    """`count` of `total`, and the 95 % Wilson interval of the proportion; None for a total of 0."""

    count: int
    total: int
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Mean:
    """The mean of `total` values and its 95 % bootstrap interval; None without values, and no interval of a single one:
    drawn again it is always itself, and the interval would claim to know."""

    mean: float | None
    low: float | None
    high: float | None
    total: int


def share_of(count: int, total: int) -> Share:
    """The Wilson score interval: sound for counts of 0 and for small totals, where the normal one is not."""
    if total == 0:
        return Share(count, total, None, None, None)
    p, z2 = count / total, Z95 * Z95
    centre = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total)) / (1 + z2 / total)
    return Share(count, total, p, 0.0 if count == 0 else centre - half, 1.0 if count == total else centre + half)


def mean_of(values: Sequence[float], seed: int = 0) -> Mean:
    """The percentile bootstrap with a fixed seed: the same values give the same interval."""
    if not values:
        return Mean(None, None, None, 0)
    if len(values) == 1:
        return Mean(float(values[0]), None, None, 1)
    sample = np.asarray(values, np.float64)
    draws = np.random.Generator(np.random.PCG64(seed)).integers(0, len(sample), (NUM_RESAMPLES, len(sample)))
    low, high = np.percentile(sample[draws].mean(axis=1), (2.5, 97.5))
    return Mean(float(sample.mean()), float(low), float(high), len(sample))


def deviation_of(values: Sequence[float]) -> float:
    """Standard deviation (n - 1) of at least two values; 0 for equal ones, exactly."""
    return 0.0 if len(set(values)) == 1 else float(np.std(np.asarray(values, np.float64), ddof=1))
