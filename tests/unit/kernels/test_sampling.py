"""Native adjust and sample against their reference, over everything that changes the way through the histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from exactlm.kernels import _native
from exactlm.kernels.api import Kernels
from exactlm.kernels.reference import ReferenceKernels
from exactlm.kernels.select import available_isas, select_kernels
from exactlm.numerics.sampling import ONE_Q40

REFERENCE = ReferenceKernels()
KERNELS = [select_kernels(isa, 2) for isa in available_isas()]
LAST = (1 << 64) - 1
VALUES = {
    "ties": lambda r, n: r.integers(-2, 3, n).astype(np.float32),
    "zeros": lambda r, n: np.where(r.random(n) < 0.5, np.float32(0), np.float32(-0.0)),
    "equal": lambda r, n: np.full(n, r.normal(), np.float32),
    "close": lambda r, n: np.float32(1) + r.integers(0, 1 << 12, n).astype(np.float32) * np.float32(2**-23),
    "normal": lambda r, n: r.normal(0, 4, n).astype(np.float32),
    "huge": lambda r, n: (r.normal(0, 1, n) * 10.0 ** r.integers(-40, 38, n)).astype(np.float32),
    "any": lambda r, n: np.nan_to_num(r.integers(0, 1 << 32, n).astype(np.uint32).view(np.float32), posinf=9, neginf=9),
    "outlier": lambda r, n: np.where(np.arange(n) == n // 3, np.float32(1e30), r.normal(0, 2, n).astype(np.float32)),
}


def logits(seed: int, kind: str, n: int, excluded: float) -> NDArray[np.float32]:
    r = np.random.default_rng(seed)
    x = np.asarray(VALUES[kind](r, n), np.float32)
    x[r.random(n) < excluded] = -np.inf
    return x


def choose(kernels: Kernels, x: NDArray[np.float32], rows: list[tuple[float, int, int, int, int]]) -> list[int]:
    """The choices among x [V] for each row of parameters."""
    temperature, min_weight, top_k, top_p, u = zip(*rows, strict=True)
    chosen = np.full(len(rows), -7, np.int64)
    limits = np.array(min_weight, np.int64), np.array(top_k, np.int64), np.array(top_p, np.int64)
    table = np.repeat(x[None], len(rows), 0)
    kernels.sample(table, len(rows), len(x), np.array(temperature), *limits, np.array(u, np.uint64), chosen)
    return [int(i) for i in chosen]


ROW = st.tuples(
    st.sampled_from([0.0, 0.001, 0.1, 0.7, 1.0, 3.3, 1000.0]) | st.floats(0.001, 1000),
    st.sampled_from([0, 0, 1, 1 << 20, ONE_Q40]) | st.integers(0, ONE_Q40),
    st.sampled_from([0, 0, 1, 2, 50, 10**6]) | st.integers(0, 2000),
    st.sampled_from([ONE_Q40, ONE_Q40, 0, 1, ONE_Q40 - 1]) | st.integers(0, ONE_Q40),
    st.sampled_from([0, LAST, 1 << 63]) | st.integers(0, LAST),
)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(VALUES)),
    st.integers(1, 1500),
    st.sampled_from([0.0, 0.0, 0.5, 0.99, 1.0]),
    st.lists(ROW, min_size=1, max_size=6),
)
def test_sample_equals_the_reference(seed: int, kind: str, n: int, excluded: float, rows: list[Any]) -> None:
    x = logits(seed, kind, n, excluded)
    expected = choose(REFERENCE, x, rows)
    for kernels in KERNELS:
        assert choose(kernels, x, rows) == expected, kernels.isa


@pytest.mark.parametrize("kind", sorted(VALUES))
def test_sample_of_whole_vocabularies(kind: str) -> None:
    x = logits(3, kind, 49152, 0.01)
    cuts = [(0, 0, ONE_Q40), (0, 40, ONE_Q40), (0, 20000, ONE_Q40), (0, 0, ONE_Q40 // 3), (1 << 30, 30000, 1 << 39)]
    rows = [(t, *cut, u) for t in (0.8, 1000.0) for cut in cuts for u in (0, 0xDEADBEEF << 32, LAST)]
    expected = choose(REFERENCE, x, rows)
    for kernels in KERNELS:
        assert choose(kernels, x, rows) == expected, kernels.isa


def test_an_id_that_weighs_nothing_counts_for_top_k() -> None:
    """0 first, then ids of weight 0: with top_k 3 the sum is that of the first; none of them is ever chosen."""
    x = np.array([100, 1, 2, 3, 4, -np.inf], np.float32)
    for kernels in (REFERENCE, *KERNELS):
        assert choose(kernels, x, [(1.0, 0, k, ONE_Q40, LAST) for k in (0, 1, 3, 5, 9)]) == [0] * 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.nan])
@pytest.mark.parametrize("at", [0, 33, 516])
def test_sample_of_a_non_finite_row(value: float, at: int) -> None:
    x = np.zeros((3, 517), np.float32)
    x[1, at] = value
    x[2] = -np.inf
    zero, one = np.zeros(3, np.int64), np.full(3, ONE_Q40)
    for kernels in (REFERENCE, *KERNELS):
        for temperature in (0.0, 1.0):
            chosen = np.full(3, -7, np.int64)
            kernels.sample(x, 3, 517, np.full(3, temperature), zero, zero, one, np.zeros(3, np.uint64), chosen)
            assert chosen.tolist() == [0, -1, -1]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["normal", "zeros", "huge", "any"]),
    st.integers(1, 700),
    st.sampled_from([1.0, 0.001, 1000.0, 1.3]) | st.floats(0.001, 1000),
    st.sampled_from([0.0, -0.0, 2.0, -2.0]) | st.floats(-2, 2),
    st.sampled_from([0.0, -0.0, 1.5]) | st.floats(-2, 2),
)
def test_adjust_equals_the_reference(seed: int, kind: str, n: int, r: float, f: float, p: float) -> None:
    random = np.random.default_rng(seed)
    x = logits(seed, kind, n, 0)
    bias_ids, history = (np.flatnonzero(random.random(n) < share) for share in (0.1, 0.4))
    bias = random.normal(0, 50, len(bias_ids)).astype(np.float32)
    counts = random.choice(np.array([0, 1, 2, 2**24 + 1], np.int32), len(history))
    expected = x.copy()
    is_ok = REFERENCE.adjust(expected, n, bias_ids, bias, history, counts, r, f, p)
    for kernels in KERNELS:
        found = x.copy()
        assert kernels.adjust(found, n, bias_ids, bias, history, counts, r, f, p) == is_ok, kernels.isa
        assert found.tobytes() == expected.tobytes(), kernels.isa


GOOD = {
    "x": np.zeros((2, 8), np.float32),
    "num_rows": 2,
    "n": 8,
    "temperature": np.ones(2),
    "min_weight": np.zeros(2, np.int64),
    "top_k": np.zeros(2, np.int64),
    "top_p_q40": np.full(2, ONE_Q40),
    "u": np.zeros(2, np.uint64),
    "chosen": np.zeros(2, np.int64),
}


@pytest.mark.parametrize(
    "bad",
    [
        {"num_rows": 3},
        {"num_rows": -1},
        {"n": 9},
        {"n": 0},
        {"chosen": np.zeros(1, np.int64)},
        {"u": np.zeros(1, np.uint64)},
        *({"temperature": np.array([1, t])} for t in (np.nan, np.inf, -1.0, 0.0009, 1000.1)),
        {"min_weight": np.array([0, ONE_Q40 + 1])},
        {"min_weight": np.array([0, -1])},
        {"top_k": np.array([-1, 0])},
        {"top_p_q40": np.array([0, ONE_Q40 + 1])},
    ],
)
def test_sample_refuses(bad: dict[str, Any]) -> None:
    kernels = _native.Backend("scalar", 1)
    kernels.sample(*GOOD.values())
    with pytest.raises(ValueError, match=r"rows|row lacks|outside the range"):
        kernels.sample(*{**GOOD, **bad}.values())


@pytest.mark.parametrize(
    ("at", "bad"),
    [
        (1, 9),
        (2, np.array([8])),
        (2, np.array([-1])),
        (3, np.zeros(2, np.float32)),
        (4, np.array([8])),
        (5, np.array([-1], np.int32)),
        (6, 0.0),
        (6, np.nan),
        (7, 2.1),
        (8, -np.inf),
    ],
)
def test_adjust_refuses(at: int, bad: Any) -> None:
    kernels = _native.Backend("scalar", 1)
    ids = np.array([7])
    good = [np.zeros(8, np.float32), 8, ids, np.ones(1, np.float32), ids, np.ones(1, np.int32), 1.0, 0.0, 0.0]
    assert kernels.adjust(*good)
    with pytest.raises(ValueError, match=r"fit x|needs a|outside|negative"):
        kernels.adjust(*good[:at], bad, *good[at + 1 :])
