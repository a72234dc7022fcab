"""The overflow proofs at their limits: K = 32,768 with every code at its extreme, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from exactlm.kernels.select import select_kernels
from exactlm.numerics.layout import pack_scales, pack_w8, pack_w16
from exactlm.numerics.weight import W8, W16

K = 32768
CODE = 32639


@pytest.mark.parametrize(
    ("x", "w"), [(CODE, CODE), (CODE, -CODE), (-CODE, -CODE), (127, -32640 + 1), (-128, CODE), (32512, 128)]
)
def test_w16_at_the_limit(compiled_isa: str, x: int, w: int) -> None:
    kernels = select_kernels(compiled_isa, 1)
    weight = W16(np.full((16, K), w, np.int16), np.ones(16, np.float32))
    codes, scales = np.full((2, K), x, np.int16), np.ones(2, np.float32)
    y = np.zeros((2, 16), np.float32)
    kernels.linear(kernels.make_linear(pack_w16(weight).reshape(-1), None, weight.scales, 16, K), codes, scales, 2, y)
    assert (y == np.int64(x * w * K).astype(np.float32)).all()


@pytest.mark.parametrize(("x", "w"), [(CODE, 127), (CODE, -128), (-CODE, -128), (-CODE, 127), (255, -128)])
def test_w8_at_the_limit(compiled_isa: str, x: int, w: int) -> None:
    kernels = select_kernels(compiled_isa, 1)
    weight = W8(np.full((16, K), w, np.int8), np.full((16, K // 32), 65535, np.uint16), np.ones(16, np.float32))
    packed, multipliers = pack_w8(weight)
    linear = kernels.make_linear(packed.reshape(-1), multipliers.reshape(-1), pack_scales(weight.scales), 16, K)
    codes, scales = np.full((7, K), x, np.int16), np.ones(7, np.float32)
    y = np.zeros((7, 16), np.float32)
    kernels.linear(linear, codes, scales, 7, y)
    assert (y == np.int64(x * w * 65535 * K).astype(np.float32)).all()


def test_attention_over_long_context_equals_the_exact_sum(compiled_isa: str) -> None:
    """40,000 equal keys: every P is 2^23 - 1, and their sums are beyond what 32 bits hold."""
    kernels = select_kernels(compiled_isa, 2)
    pages = 1250
    cache = kernels.make_kv_cache(1, pages, 1, 16, 2)
    table = np.arange(pages, dtype=np.int32)[None, :]
    count = pages * 32
    qkv = np.zeros((count, 48), np.float32)
    qkv[:, 32:] = 3.5
    qkv[:, 40] = -3.5
    ones, zeros = np.ones((count, 8), np.float32), np.zeros((count, 8), np.float32)
    codes, scales = np.zeros((count, 16), np.int16), np.zeros(count, np.float32)
    step = kernels.make_step(np.array([0, count], np.int32), np.arange(count, dtype=np.int32), table)
    assert kernels.write_qkv(step, qkv, 1, ones, zeros, cache, 0, codes, scales)
    last = kernels.make_step(np.array([0, 1], np.int32), np.array([count - 1], np.int32), table)
    out = np.zeros((1, 16), np.float32)
    assert kernels.attend(last, codes[-1:].copy(), scales[-1:].copy(), 1, cache, 0, 0.18, 0, out)
    peak, code, value_scale = 8388607, 28672, np.float32(2.0**-13)  # 3.5 = 28672 * 2^-13
    denominator = np.int64(count << 30).astype(np.float32) * np.float32(2.0**-30)
    rescale = (value_scale / np.float32(peak)) / denominator
    expected = np.full(16, np.int64(peak * code * count).astype(np.float32) * rescale)
    expected[8] = -expected[8]
    assert out[0].tobytes() == expected.tobytes()
