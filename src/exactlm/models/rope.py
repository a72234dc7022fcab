"""Rotary frequencies of a model: spec/numerics.md 6.1 and 6.5 applied to its configuration.

Knows no arrays of tokens.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from exactlm.models.config import ModelConfig
from exactlm.models.rope_scaling import RopeScaling
from exactlm.numerics.constant import PRECISION, pi, to_float32
from exactlm.numerics.rope import base_frequencies, dynamic_theta, to_turns


class RopeFrequencies:
    """Frequencies by position (only dynamic scaling makes them differ) and the factor on cosine and sine."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._scaling = config.rope_scaling
        self.factor = _attention_factor(config.rope_scaling)
        self._fixed = to_turns(_scaled(base_frequencies(config.rope_theta, config.head_dim), config))
        self._at = lru_cache(maxsize=4096)(self._dynamic)

    def at(self, position: int) -> NDArray[np.uint64]:
        """Turns per position [d/2] in Q64 for the token at `position`."""
        s = self._scaling
        if s is None or s.kind != "dynamic" or position < _original(self._config):
            return self._fixed
        return self._at(position)

    def _dynamic(self, position: int) -> NDArray[np.uint64]:
        c = self._config
        assert c.rope_scaling is not None
        theta = dynamic_theta(c.rope_theta, c.rope_scaling.factor, _original(c), position + 1, c.head_dim)
        with localcontext() as context:
            context.prec = PRECISION
            return to_turns([theta ** (Decimal(-2 * i) / c.head_dim) for i in range(c.head_dim // 2)])


def _original(config: ModelConfig) -> int:
    s = config.rope_scaling
    original = s.original_max_position_embeddings if s is not None else None
    return original or config.max_position_embeddings


def _scaled(a: list[Decimal], config: ModelConfig) -> list[Decimal]:
    s = config.rope_scaling
    if s is None or s.kind == "dynamic":
        return a
    with localcontext() as context:
        context.prec = PRECISION
        if s.divisors is not None:
            return [x / Decimal(v) for x, v in zip(a, s.divisors, strict=True)]
        factor = Decimal(s.factor)
        if s.kind == "linear":
            return [x / factor for x in a]
        if s.kind == "llama3":
            return [_llama3(x, s, _original(config)) for x in a]
        return _yarn(a, s, config)


def _llama3(a: Decimal, s: RopeScaling, original: int) -> Decimal:
    factor, low, high = Decimal(s.factor), Decimal(s.low_freq_factor or 0), Decimal(s.high_freq_factor or 0)
    turns = original * a / (2 * pi())  # of the original window; more than `high` turns means a short wavelength
    if turns > high:
        return a
    if turns < low:
        return a / factor
    z = (turns - low) / (high - low)
    return (1 - z) * a / factor + z * a


def _yarn(a: list[Decimal], s: RopeScaling, config: ModelConfig) -> list[Decimal]:
    d, theta, original = config.head_dim, Decimal(config.rope_theta), Decimal(_original(config))

    def dimension(beta: float) -> Decimal:
        return d * (original / (Decimal(beta) * 2 * pi())).ln() / (2 * theta.ln())

    low, high = dimension(s.beta_fast or 32), dimension(s.beta_slow or 1)
    if s.truncate is not False:
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    low, high = max(low, Decimal(0)), min(high, Decimal(d - 1))
    if low == high:
        high += Decimal("0.001")
    result = []
    for i, x in enumerate(a):
        keep = 1 - min(max((Decimal(i) - low) / (high - low), Decimal(0)), Decimal(1))
        result.append(x / Decimal(s.factor) * (1 - keep) + x * keep)
    return result


def _attention_factor(s: RopeScaling | None) -> float:
    """The fp32 factor t of clause 6.3."""
    if s is None or s.kind != "yarn":
        return 1.0
    if s.attention_factor is not None:
        return float(to_float32(Decimal(s.attention_factor)))
    with localcontext() as context:
        context.prec = PRECISION

        def term(mscale: float) -> Decimal:
            return Decimal(1) if s.factor <= 1 else Decimal("0.1") * Decimal(mscale) * Decimal(s.factor).ln() + 1

        if s.mscale and s.mscale_all_dim:
            return float(to_float32(term(s.mscale) / term(s.mscale_all_dim)))
        return float(to_float32(term(1.0)))
