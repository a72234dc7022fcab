"""How far our logits are from the oracle's: mean KL, worst KL, top-1 agreement. Knows arrays only; sums are float64."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
ROWS = 64  # positions at a time: bounds the float64 copies


@dataclass(frozen=True)
class Divergence:
    """Over all positions: KL(oracle || ours) in nats per token, and the share with the same first choice."""

    num_tokens: int
    mean_kl: float
    max_kl: float
    top1: float
    max_logit_error: float

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens: mean KL {self.mean_kl:.2e}, max {self.max_kl:.2e}, "
            f"top-1 {100 * self.top1:.2f} %, max logit error {self.max_logit_error:.1e}"
        )


def measure(pairs: Iterable[tuple[F32, F32]]) -> Divergence:
    """Divergence of (oracle, ours) pairs of logits [T, V]."""
    kl: list[F64] = []
    same: list[NDArray[np.bool_]] = []
    error = 0.0
    for oracle, ours in pairs:
        assert oracle.shape == ours.shape
        for at in range(0, len(oracle), ROWS):
            p, q = oracle[at : at + ROWS], ours[at : at + ROWS]
            kl.append(kl_per_token(p, q))
            same.append(p.argmax(1) == q.argmax(1))
            error = max(error, float(np.abs(p - q).max()))
    every = np.concatenate(kl)
    return Divergence(len(every), float(every.mean()), float(every.max()), float(np.concatenate(same).mean()), error)


def kl_per_token(oracle: F32, ours: F32) -> F64:
    """KL(oracle || ours) [T]: sum of p * (exp(-d) - 1 + d), d = log p - log q; no term is negative, so none cancel."""
    log_p, log_q = log_softmax(oracle), log_softmax(ours)
    d = log_p - log_q
    return (np.exp(log_p) * (np.expm1(-d) + d)).sum(1)


def log_softmax(logits: F32) -> F64:
    """Log-probabilities [T, V] in float64."""
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    x -= np.log(np.exp(x).sum(1, keepdims=True))
    return x


def perplexity(logits: F32, ids: NDArray[np.int64]) -> float:
    """exp of the mean negative log-probability of ids[1:] given logits [T, V] of ids [T]."""
    chosen = log_softmax(logits[:-1])[np.arange(len(ids) - 1), ids[1:]]
    return float(np.exp(-chosen.mean()))
