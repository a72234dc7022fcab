"""Which token follows, given logits: spec/sampling.md clauses 3 to 6, written to be read.

Knows one row of logits at a time; nothing of requests, tokenizers or batches. An excluded id is a logit of -infinity.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError
from exactlm.numerics.activation import exp2

SAMPLING_VERSION = 1  # of spec/sampling.md
LOG2E_F64 = float.fromhex("0x1.71547652b82fep+0")
ONE_Q40 = 1 << 40


def to_q40(p: float) -> int:
    """rne(p * 2^40), exactly. Clauses 5.2, 5.4."""
    return round(Fraction(p) * ONE_Q40)


def to_fp32(value: float) -> float:
    """fp32(value), by integers: a conversion would round as the caller's control word says. Clause 3.1."""
    unit = max(math.frexp(value)[1] - 24, -149)  # the exponent of its last bit in fp32
    return math.ldexp(round(Fraction(value) / Fraction(2) ** unit), unit)


def adjust(
    x: NDArray[np.float32],
    bias_ids: NDArray[np.int64],
    bias: NDArray[np.float32],
    history_ids: NDArray[np.int64],
    counts: NDArray[np.int32],
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    """Clause 3 in place. x [V]; bias of bias_ids; history_ids: distinct ids of prompt and answer, with their counts in
    the answer alone. NumericError where a result is not finite."""
    r, f, p = np.float32(repetition), np.float32(frequency), np.float32(presence)
    with np.errstate(over="ignore", invalid="ignore"):
        x[bias_ids] = x[bias_ids] + bias
        for i, count in zip(history_ids.tolist(), counts.tolist(), strict=True):
            if repetition != 1:
                x[i] = x[i] / r if x[i] > 0 else x[i] * r
            if count:
                x[i] = x[i] - f * np.float32(count)
                x[i] = x[i] - p
    if not np.isfinite(x).all():
        raise NumericError("a logit is NaN or infinite after bias and penalties")


def order(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Ids that are not excluded, the largest logit first, equal ones by lower id. Clause 4.1."""
    ids = np.flatnonzero(x > -np.inf)
    return np.asarray(ids[np.argsort(-x[ids], kind="stable")], np.int64)


def weights(x: NDArray[np.float32], temperature: float) -> NDArray[np.int64]:
    """w of clause 5.1 for logits x [n] in order, the largest first."""
    c = np.float32(LOG2E_F64 / temperature)
    with np.errstate(over="ignore"):  # far below the first: -infinity, whose weight is 0
        scaled = (x - x[0]) * c
    return np.rint(exp2(scaled).astype(np.float64) * 2.0**40).astype(np.int64)


def sample(x: NDArray[np.float32], temperature: float, min_weight: int, top_k: int, top_p_q40: int, u: int) -> int:
    """The choice among x [V] for 64 random bits u; top_k 0 is off. NumericError where an x is NaN or +infinity or
    all are excluded."""
    if np.isnan(x).any() or (x == np.inf).any() or not (x > -np.inf).any():
        raise NumericError("a logit is NaN or infinite, or no token is allowed")
    ids = order(x)
    if temperature == 0:
        return int(ids[0])
    w = weights(x[ids], temperature)
    ids, w = ids[w >= min_weight], w[w >= min_weight]
    if top_k:
        w = w[:top_k]
    running = np.cumsum(w)
    total = int(running[-1])
    kept = 1 + int(np.searchsorted(running, -(-top_p_q40 * total // ONE_Q40), side="left"))
    running = running[: max(1, min(kept, len(running)))]
    v = u * int(running[-1]) >> 64
    return int(ids[np.searchsorted(running, v, side="right")])
