"""One exact attention row: clause 8."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError
from exactlm.numerics.activation import exp2
from exactlm.numerics.code import TINY
from exactlm.numerics.linear import to_float32

P_MAX = np.float32(8388607)


def attention_row(
    query: NDArray[np.int16],
    query_scale: np.float32,
    keys: NDArray[np.int16],
    key_scales: NDArray[np.float32],
    values: NDArray[np.int16],
    value_scales: NDArray[np.float32],
    scale: np.float32,
) -> NDArray[np.float32]:
    """Output [d] of query codes [d] over the keys that take part: codes [n, d], scales [n]. Clauses 8.1 to 8.4."""
    acc = (keys.astype(np.int64) * query.astype(np.int64)).sum(axis=1)
    t = (to_float32(acc) * key_scales) * np.float32(query_scale * scale)
    if not np.all(np.isfinite(t)):
        raise NumericError("an attention score is NaN or infinite")
    e = exp2(t - t.max())
    denominator = np.rint(e * np.float32(2.0**30)).astype(np.int64).sum()
    w = e * value_scales
    wm = w.max()
    if wm < TINY:
        return np.zeros(len(query), np.float32)
    p = np.rint(w * (P_MAX / wm)).astype(np.int64)
    mixed = (p[:, None] * values.astype(np.int64)).sum(axis=0)
    rescale = (wm / P_MAX) / (to_float32(denominator) * np.float32(2.0**-30))
    return np.asarray(to_float32(mixed) * rescale, np.float32)
