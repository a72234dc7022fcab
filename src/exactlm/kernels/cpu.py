"""The compiled implementation. Adds nothing to exactlm.kernels._native but the constructors of its objects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.kernels import _native
from exactlm.kernels.api import F32, I32, PAGE_TOKENS

if PAGE_TOKENS != _native.PAGE_TOKENS:
    raise ImportError(
        f"exactlm.kernels._native was built for pages of {_native.PAGE_TOKENS} tokens, not {PAGE_TOKENS}: rebuild it"
    )


class CpuKernels(_native.Backend):
    """Kernels for one instruction set with its own thread pool. See kernels/api.py."""

    def make_linear(
        self, codes: NDArray[np.uint8], multipliers: NDArray[np.uint16] | None, scales: F32, n: int, k: int
    ) -> _native.Linear:
        return _native.Linear(codes, multipliers, scales, n, k)

    def make_kv_cache(
        self, num_layers: int, num_pages: int, num_heads: int, head_dim: int, limbs: int
    ) -> _native.KvCache:
        return _native.KvCache(num_layers, num_pages, num_heads, head_dim, limbs)

    def make_step(self, first_token: I32, positions: I32, page_table: I32) -> _native.Step:
        return _native.Step(first_token, positions, page_table)
