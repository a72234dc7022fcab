"""The log-probabilities that are reported beside a choice. spec/numerics.md 10."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.engine.sequence import Logprobs
from exactlm.kernels.api import F32


def top_logprobs(logits: F32, values: NDArray[np.float64], chosen: int, count: int) -> Logprobs:
    """The `count` most likely tokens and the chosen one: id -> natural log, by (logit, lower id).

    logits [V]; values [V], their log-probabilities.
    """
    order = np.argsort(-_ordered(logits), kind="stable")[:count].tolist()
    if chosen not in order:
        order.append(chosen)
    return {i: float(values[i]) for i in order}


def _ordered(x: F32) -> NDArray[np.int64]:
    """Integers that sort like x: unlike float comparisons, blind to the processor's treatment of subnormals."""
    pattern = np.ascontiguousarray(x).view(np.int32).astype(np.int64)
    return np.where(pattern >= 0, pattern, -(pattern & 0x7FFFFFFF))
