"""A float32 engine under the same harness: what the invariance tests must be able to catch."""

from __future__ import annotations

import numpy as np

from exactlm.kernels.api import F32, I16
from exactlm.kernels.reference import ReferenceKernels
from exactlm.numerics.weight import W8, W16


class FloatKernels(ReferenceKernels):
    """The reference with one thing changed: linear layers multiply in float32 through NumPy's BLAS, whose sums
    depend on the batch."""

    def linear(self, weight: W16 | W8, codes: I16, scales: F32, num_rows: int, y: F32) -> None:
        w = weight.dequantise()
        x = codes[:num_rows, : w.shape[1]].astype(np.float32) * scales[:num_rows, None]
        y[:num_rows, : len(w)] = x @ w.T
