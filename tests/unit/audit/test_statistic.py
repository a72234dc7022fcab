"""Intervals against published and closed-form values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from exactlm.audit.report import tell_interval, tell_mean, tell_share
from exactlm.audit.statistic import Mean, deviation_of, mean_of, share_of


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_is_the_published_one(count: int, total: int, low: float, high: float) -> None:
    share = share_of(count, total)
    assert share.low is not None
    assert share.high is not None
    assert (round(share.low, 4), round(share.high, 4)) == (low, high)


def test_wilson_interval_is_symmetric_and_inside() -> None:
    for total in (1, 8, 100):
        for count in range(total + 1):
            a, b = share_of(count, total), share_of(total - count, total)
            assert a.low is not None
            assert a.high is not None
            assert b.high is not None
            assert 0 <= a.low <= count / total <= a.high <= 1
            assert abs(a.low - (1 - b.high)) < 1e-12  # two roundings of one formula


def test_nothing_has_no_interval() -> None:
    assert share_of(0, 0).share is None
    assert mean_of([]).mean is None
    assert tell_mean(mean_of([])) == tell_share(share_of(0, 0)) == "–"


def test_one_value_has_no_interval() -> None:
    assert mean_of([2.5]) == Mean(2.5, None, None, 1)
    assert (tell_mean(mean_of([2.5])), tell_interval(mean_of([2.5]))) == ("2.5", "")
    assert (tell_mean(mean_of([2.5, 2.5])), tell_interval(mean_of([2.5, 2.5]))) == ("2.5", "2.5–2.5")


def test_bootstrap_repeats_and_covers() -> None:
    values = [1.0, 2.0, 2.0, 5.0]
    assert mean_of(values) == mean_of(values)
    made = mean_of(values)
    assert made.mean == 2.5
    assert made.low is not None
    assert made.high is not None
    assert 1 <= made.low < 2.5 < made.high <= 5
    assert mean_of([3.0, 3.0]).low == mean_of([3.0, 3.0]).high == 3.0


def test_bootstrap_width_is_that_of_the_normal_for_many_values() -> None:
    values = np.random.Generator(np.random.PCG64(1)).normal(size=400)
    made = mean_of(list(values))
    assert made.low is not None
    assert made.high is not None
    expected = 2 * 1.96 * values.std() / math.sqrt(len(values))
    assert 0.9 < (made.high - made.low) / expected < 1.1


def test_deviation() -> None:
    assert deviation_of([0.1, 0.1, 0.1]) == 0.0
    assert deviation_of([1.0, 3.0]) == math.sqrt(2)
