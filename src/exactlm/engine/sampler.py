"""The choice of a token from logits: greedy, with log-probabilities on request. spec/numerics.md 10."""

from __future__ import annotations

import numpy as np

from exactlm.engine.sequence import Logprobs
from exactlm.kernels.api import F32
from exactlm.numerics.activation import log_probabilities


def top_logprobs(logits: F32, chosen: int, count: int) -> Logprobs:
    """The `count` most likely tokens of logits [V] and the chosen one: id -> natural log, by (likelihood, lower id)."""
    values = log_probabilities(logits)
    order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))[:count].tolist()
    if chosen not in order:
        order.append(chosen)
    return {i: float(values[i]) for i in order}
