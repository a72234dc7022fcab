"""The compiled module refuses what would make it read or write outside its arrays."""

from __future__ import annotations

import numpy as np
import pytest

from exactlm.kernels import _native


@pytest.mark.parametrize("row", [-1, 4, 2**31 - 1])
def test_rows_outside_x_are_refused(row: int) -> None:
    kernels = _native.Backend("scalar", 1)
    x, gain = np.ones((4, 64), np.float32), np.ones(64, np.float32)
    codes, scales = np.zeros((1, 64), np.int16), np.zeros(1, np.float32)
    assert kernels.norm_quantise(x, None, np.array([3], np.int32), 1, gain, 1e-5, codes, scales)
    with pytest.raises(ValueError, match="rows names a row"):
        kernels.norm_quantise(x, None, np.array([row], np.int32), 1, gain, 1e-5, codes, scales)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1, 16, 2), (1, -1, 1, 16, 2), (1, 1, 0, 16, 2), (1, 1, 1, 258, 2), (1, 1, 1, 16, 3)]
)
def test_cache_sizes_are_checked(sizes: tuple[int, ...]) -> None:
    assert _native.KvCache(1, 1, 1, 256, 1).num_pages == 1
    with pytest.raises(ValueError, match="KV cache"):
        _native.KvCache(*sizes)
