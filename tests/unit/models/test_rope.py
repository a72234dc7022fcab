"""Rotary frequencies against spec/numerics.md 6.5 in 60 digits, worked out with mpmath."""

from typing import Any

import mpmath
import numpy as np
import pytest

from exactlm.models.config import ModelConfig
from exactlm.models.hf_config import parse_config
from exactlm.models.rope import RopeFrequencies
from tests.tiny import BASE, VARIANTS, make_config

D = 16


def config_of(scaling: dict[str, Any] | None, **change: Any) -> ModelConfig:
    return parse_config({**BASE, "rope_scaling": scaling, **change}, "config.json")


def turns(values: list[Any]) -> np.ndarray:
    with mpmath.workdps(60):
        return np.array(
            [int(mpmath.nint(mpmath.mpf(2) ** 64 * a / (2 * mpmath.pi))) % 2**64 for a in values], np.uint64
        )


def base(theta: float = 10000.0) -> list[Any]:
    with mpmath.workdps(60):
        return [mpmath.mpf(theta) ** (mpmath.mpf(-2 * i) / D) for i in range(D // 2)]


def test_plain_and_linear() -> None:
    np.testing.assert_array_equal(RopeFrequencies(config_of(None)).at(7), turns(base()))
    with mpmath.workdps(60):
        expected = turns([a / mpmath.mpf(2.5) for a in base()])
    linear = RopeFrequencies(config_of({"type": "linear", "factor": 2.5}))
    np.testing.assert_array_equal(linear.at(0), expected)
    assert linear.factor == 1.0


def test_llama3() -> None:
    factor, low, high, window = 8.0, 1.0, 4.0, 64
    values = []
    with mpmath.workdps(60):
        for a in base():
            wavelength = 2 * mpmath.pi / a
            z = (window / wavelength - low) / (high - low)
            if wavelength < window / high:
                values.append(a)
            elif wavelength > window / low:
                values.append(a / factor)
            else:
                values.append((1 - z) * a / factor + z * a)
        expected = turns(values)
    found = RopeFrequencies(parse_config(make_config("llama3"), "config.json")).at(3)
    np.testing.assert_array_equal(found, expected)
    assert len({int(f) for f in found} & {int(f) for f in turns(base())}) in range(1, 8)  # some kept, some not


@pytest.mark.parametrize(("theta", "window", "fast"), [(10000.0, 64, 32), (30.0, 6000, 256), (1e6, 8, 32)])
@pytest.mark.parametrize("truncate", [None, True, False])
def test_yarn(truncate: bool | None, theta: float, window: int, fast: int) -> None:
    """The second has its correction range cut at d - 1, the third at 0."""
    factor, d = 8, D
    extra = {} if truncate is None else {"truncate": truncate}
    yarn = {"type": "yarn", "factor": factor, "original_max_position_embeddings": window, "beta_fast": fast, **extra}
    with mpmath.workdps(60):

        def dimension(beta: int) -> Any:
            return d * mpmath.log(window / (beta * 2 * mpmath.pi)) / (2 * mpmath.log(theta))

        low, high = dimension(fast), dimension(1)
        if truncate is not False:
            low, high = mpmath.floor(low), mpmath.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        high += mpmath.mpf("0.001") if low == high else 0
        values = []
        for i, a in enumerate(base(theta)):
            g = 1 - min(max((i - low) / (high - low), 0), 1)
            values.append(a / factor * (1 - g) + a * g)
        expected = turns(values)
        attention = np.float32(float(mpmath.mpf("0.1") * mpmath.log(factor) + 1))
    found = RopeFrequencies(config_of(yarn, rope_theta=theta))
    np.testing.assert_array_equal(found.at(0), expected)
    assert found.factor == float(attention)


def test_yarn_attention_factor_given_or_from_two_scales() -> None:
    yarn = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64}
    assert RopeFrequencies(config_of({**yarn, "attention_factor": 1.25})).factor == 1.25
    equal = RopeFrequencies(config_of({**yarn, "mscale": 0.707, "mscale_all_dim": 0.707}))
    assert equal.factor == 1.0
    with mpmath.workdps(60):
        term = [mpmath.mpf("0.1") * mpmath.mpf(m) * mpmath.log(40) + 1 for m in (1.0, 0.5)]
        expected = float(np.float32(float(term[0] / term[1])))
    assert RopeFrequencies(config_of({**yarn, "mscale": 1.0, "mscale_all_dim": 0.5})).factor == expected


def test_dynamic_follows_the_position_only() -> None:
    config = parse_config(make_config("dynamic"), "config.json")
    found = RopeFrequencies(config)
    factor, window = 4, 64
    for position in (0, 63):
        np.testing.assert_array_equal(found.at(position), turns(base()))
    for position in (500, 64, 127, 64):
        with mpmath.workdps(60):
            grown = mpmath.mpf(factor) * (position + 1) / window - (factor - 1)
            theta = 10000 * grown ** (mpmath.mpf(D) / (D - 2))
            expected = turns([theta ** (mpmath.mpf(-2 * i) / D) for i in range(D // 2)])
        np.testing.assert_array_equal(found.at(position), expected)


@pytest.mark.parametrize("variant", ["linear", "dynamic", "llama3", "yarn"])
def test_every_scaling_changes_the_frequencies(variant: str) -> None:
    plain = RopeFrequencies(parse_config(make_config("base"), "config.json")).at(200)
    scaled = RopeFrequencies(parse_config(make_config(variant), "config.json")).at(200)
    assert variant in VARIANTS
    assert (plain != scaled).any()
