"""What clauses 3 to 6 of spec/sampling.md promise, shown on their reference."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlm.errors import NumericError
from exactlm.numerics.philox import draw
from exactlm.numerics.sampling import ONE_Q40, adjust, order, sample, to_q40, weights

NO_IDS, NO_COUNTS, NO_BIAS = np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)


def choose(x: list[float], u: int, temperature: float = 1, min_p: float = 0, top_k: int = 0, top_p: float = 1) -> int:
    return sample(np.array(x, np.float32), temperature, to_q40(min_p), top_k, to_q40(top_p), u)


@given(st.floats(0, 1))
def test_q40_is_exact(p: float) -> None:
    error = abs(Fraction(p) - Fraction(to_q40(p), ONE_Q40))
    assert error <= Fraction(1, 2 * ONE_Q40)


def test_order_breaks_ties_by_id_and_knows_one_zero() -> None:
    x = np.array([1, -0.0, 0.0, -np.inf, 2, -0.0, 2], np.float32)
    assert order(x).tolist() == [4, 6, 0, 1, 2, 5]


def test_each_cut_by_hand() -> None:
    x = [0.0, 1.0, 2.0, 3.0]  # of 85: 1 : e : e^2 : e^3, about 0.032 0.087 0.237 0.644
    last = (1 << 64) - 1
    assert [choose(x, u) for u in (0, last)] == [3, 0]
    assert choose(x, last, top_k=3) == 1
    assert choose(x, last, top_p=0.88) == 2
    assert choose(x, last, top_p=0.89) == 1
    assert choose(x, last, min_p=0.13) == 1
    assert choose(x, last, min_p=0.14) == 2
    assert choose(x, last, min_p=0.2, top_p=0.7) == 3  # top_p of what min_p left: 0.73 : 0.27
    assert choose(x, last, top_p=0) == 3
    assert choose(x, last, temperature=0) == 3


def test_a_smaller_u_chooses_a_likelier_id() -> None:
    x = np.random.Generator(np.random.Philox(key=1)).normal(0, 3, 200).astype(np.float32)
    rank = {i: r for r, i in enumerate(order(x).tolist())}
    ranks = [rank[sample(x, 1, 0, 0, ONE_Q40, u)] for u in range(0, 1 << 64, 1 << 55)]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) > 20


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 9, 1.0), (2.0, 0, 0.8)])
def test_draws_follow_the_weights(temperature: float, top_k: int, top_p: float) -> None:
    """4,000 draws of one seed: chi-square below its 99.99 % quantile for at most 19 degrees of freedom, 52.7."""
    x = np.arange(20, dtype=np.float32) / np.float32(8)
    limits = temperature, 0, top_k, to_q40(top_p)
    w = weights(x[::-1].copy(), temperature)
    w = w[: top_k or 20]
    w = w[: 1 + int(np.searchsorted(np.cumsum(w), top_p * w.sum()))]
    counts = np.zeros(20, np.int64)
    for position in range(4000):
        counts[sample(x, *limits, draw(7, 0, position))] += 1
    seen, expected = counts[::-1][: len(w)], 4000 * w / w.sum()
    assert seen.sum() == 4000
    assert ((seen - expected) ** 2 / expected).sum() < 52.7


def test_the_statistic_notices_a_wrong_temperature() -> None:
    x = np.arange(20, dtype=np.float32) / np.float32(8)
    expected = 4000 * weights(x[::-1].copy(), 1.0) / weights(x[::-1].copy(), 1.0).sum()
    counts = np.zeros(20, np.int64)
    for position in range(4000):
        counts[19 - sample(x, 1.25, 0, 0, ONE_Q40, draw(7, 0, position))] += 1
    assert ((counts - expected) ** 2 / expected).sum() > 52.7


@pytest.mark.parametrize("x", [[np.nan, 1], [np.inf, 1], [-np.inf, -np.inf]])
def test_what_cannot_be_chosen_from_is_an_error(x: list[float]) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericError):
            choose(x, 5, temperature)


def test_adjustments_by_hand() -> None:
    x = np.array([2, -2, 4, 1, 8], np.float32)
    ids, bias = np.array([3]), np.array([2.5], np.float32)
    adjust(x, ids, bias, np.array([0, 1, 2, 3]), np.array([0, 2, 1, 0], np.int32), 2.0, 0.5, 0.25)
    assert x.tolist() == [1, -4 - 1 - 0.25, 2 - 0.5 - 0.25, 1.75, 8]


def test_an_infinite_adjusted_logit_is_an_error() -> None:
    x = np.array([1, 3e38], np.float32)
    with pytest.raises(NumericError):
        adjust(x, NO_IDS, NO_BIAS, np.array([1]), np.zeros(1, np.int32), 0.001, 0.0, 0.0)
    adjust(x[:1], NO_IDS, NO_BIAS, NO_IDS, NO_COUNTS, 0.001, 0.0, 0.0)
