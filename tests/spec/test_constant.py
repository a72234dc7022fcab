"""The constants are what their clauses say, against an independent arbitrary-precision library, and functions are as
near as claimed."""

from __future__ import annotations

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest

from exactlm.numerics import activation, constant, rope
from exactlm.numerics.weight import quantise_w8, quantise_w16, w8_from_q8_0

mp.mp.dps = 60


def test_sine_and_cosine_coefficients() -> None:
    for k in range(11):
        quarter = mp.pi / 2
        assert constant.SIN[k] == int(
            mp.nint(mp.mpf(2) ** 60 * (-1) ** k * quarter ** (2 * k + 1) / mp.factorial(2 * k + 1))
        )
        assert constant.COS[k] == int(mp.nint(mp.mpf(2) ** 60 * (-1) ** k * quarter ** (2 * k) / mp.factorial(2 * k)))


def test_pi_has_the_digits_promised() -> None:
    assert abs(mp.mpf(str(constant.pi())) - mp.pi) < mp.mpf(10) ** -58


@pytest.mark.parametrize("d", [2, 16, 64, 80, 96, 128, 256])
def test_softmax_scale_is_correctly_rounded(d: int) -> None:
    exact = Fraction(str(mp.log(mp.e, 2) / mp.sqrt(d)))
    found = constant.softmax_scale(d)
    neighbours = (np.nextafter(found, np.float32(0)), np.nextafter(found, np.float32(1e9)))
    assert all(abs(Fraction(float(found)) - exact) <= abs(Fraction(float(x)) - exact) for x in neighbours)


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1000000.0])
def test_frequencies(theta: float) -> None:
    found = rope.to_turns(rope.base_frequencies(theta, 128))
    for i, f in enumerate(found.tolist()):
        assert f == int(mp.nint(mp.mpf(2) ** 64 * mp.mpf(theta) ** (mp.mpf(-2 * i) / 128) / (2 * mp.pi)))


def test_rotary_error_at_far_positions() -> None:
    frequencies = rope.to_turns(rope.base_frequencies(10000.0, 64))
    worst = mp.mpf(0)
    for position in (1, 1000, 65537, 131071):
        cosine, sine = rope.sine_cosine(position, frequencies, np.float32(1))
        for i in range(32):
            angle = position * mp.mpf(10000) ** (mp.mpf(-2 * i) / 64)
            worst = max(worst, abs(mp.cos(angle) - float(cosine[i])), abs(mp.sin(angle) - float(sine[i])))
    assert worst < mp.mpf(2) ** -24.9


def test_exp2_error() -> None:
    # The last is the worst of all fp32 numbers with 2^-13 <= |x| < 1.
    worst = float.fromhex("-0x1.91c6bap-2")
    x = np.concatenate([np.linspace(-126, 126, 400_001), np.linspace(-1, 1, 400_001), [worst]]).astype(np.float32)
    error = np.abs(activation.exp2(x).astype(np.float64) / np.exp2(x.astype(np.float64)) - 1)
    assert error[-1] == error.max() < 1.04e-7


def test_exp2_limits_its_argument() -> None:
    assert activation.exp2(np.array([-1e30, 1e30, 0], np.float32)).tolist() == [2.0**-126, 2.0**126, 1.0]


def test_logarithm_error() -> None:
    s = np.array([1 << 40, (1 << 40) + 1, 3 << 40, (1 << 52) - 1, 12345678901234567], np.int64)
    for value, found in zip(s.tolist(), activation.ln_q40(s).tolist(), strict=True):
        assert abs(mp.mpf(found) - mp.log(mp.mpf(value) / 2**40)) < mp.mpf(10) ** -14


def test_log_probabilities_sum_to_one_and_are_never_positive() -> None:
    rng = np.random.Generator(np.random.Philox(key=3))
    logits = np.ldexp(rng.integers(-(1 << 20), 1 << 20, (5, 4096)).astype(np.float32), -17)
    found = activation.log_probabilities(logits)
    assert found.max() <= 0
    assert np.abs(np.exp(found).sum(axis=1) - 1).max() < 1e-5
    assert activation.log_probabilities(np.array([[3.0]], np.float32)).tolist() == [[0.0]]


def exact_w8(row: list[float]) -> tuple[list[int], list[int], Fraction]:
    """Clause 3.2 in rationals."""
    values = [Fraction(x) for x in row] + [Fraction(0)] * (-len(row) % 32)
    m = max(abs(x) for x in values)
    r = -400
    while -(-m // (127 * Fraction(2) ** r)) > 65535:
        r += 1
    unit = Fraction(2) ** r
    multipliers, codes = [], []
    for b in range(0, len(values), 32):
        group = values[b : b + 32]
        multiplier = int(-(-max(abs(x) for x in group) // (127 * unit)))
        multipliers.append(multiplier)
        codes += [round(x / (multiplier * unit)) if multiplier else 0 for x in group]
    return codes, multipliers, unit


@pytest.mark.parametrize("key", range(6))
def test_int8_codes_equal_exact_rationals(key: int) -> None:
    rng = np.random.Generator(np.random.Philox(key=key))
    w = np.ldexp(
        rng.integers(-(1 << 23), 1 << 23, (3, 70)).astype(np.float32), rng.integers(-50, -10, (3, 70)).astype(np.int32)
    )
    w[0, :32] = [127.5, 1.5, 0.5, 2.5] * 8  # ties
    w[1, 32:64] = 0
    w = w.astype(np.float32)
    found = quantise_w8(w)
    for row in range(3):
        codes, multipliers, unit = exact_w8(w[row].tolist())
        assert found.codes[row].tolist() == codes
        assert found.multipliers[row].tolist() == multipliers
        assert Fraction(float(found.scales[row])) == unit


def test_bfloat16_weights_are_kept_exactly() -> None:
    rng = np.random.Generator(np.random.Philox(key=9))
    w = np.ldexp(rng.integers(-255, 256, (4, 64)).astype(np.float32), rng.integers(-14, -7, (4, 64)).astype(np.int32))
    w[:, 0] = 1.0
    assert quantise_w16(w.astype(np.float32)).dequantise().tobytes() == w.astype(np.float32).tobytes()


def test_q8_0_keeps_its_own_values() -> None:
    rng = np.random.Generator(np.random.Philox(key=5))
    codes = rng.integers(-128, 128, (6, 96)).astype(np.int8)
    d = np.ldexp(rng.integers(1024, 2048, (6, 3)), rng.integers(-24, -20, (6, 3))).astype(np.float16)
    d[2, 1] = 0
    d[3] = 0
    found, rounded = w8_from_q8_0(codes, d)
    expected = codes.astype(np.float32) * np.repeat(d.astype(np.float32), 32, axis=1)
    assert rounded == 0
    assert (found.dequantise() == expected).all()


def test_q8_0_rows_with_a_wide_range_are_counted() -> None:
    codes = np.full((2, 64), 5, np.int8)
    d = np.array([[60000.0, 2.0**-20], [1.0, 0.5]], np.float16)
    found, rounded = w8_from_q8_0(codes, d)
    assert rounded == 1
    assert found.multipliers.max() <= 65535
    assert found.dequantise()[0, 0] == 5 * np.float32(np.float16(60000))
