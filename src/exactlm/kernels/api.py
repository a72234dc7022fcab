"""The contract of an implementation: one signature per operation of the forward pass.

Arrays are preallocated by the caller and may hold more rows than are used; `num_rows` says how many. Dimension letters:
T tokens, D hidden, H query heads, Hk key/value heads, d head dimension, dp = d rounded up to 16, N outputs, K
reduction, F feed-forward. Code arrays are int16 with rows padded to a multiple of 64. Operations that can meet a NaN or
infinity return False when they do.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]

PAGE_TOKENS = 32  # tokens of a KV-cache page
CODE_ALIGN = 64  # rows of codes are padded to this


def padded_codes(n: int) -> int:
    """Row length of a code array for n values."""
    return -(-n // CODE_ALIGN) * CODE_ALIGN


# Objects that an implementation makes for itself and gets back as arguments.
Linear = Any
KvCache = Any
Step = Any


class Kernels(Protocol):
    """One implementation, with its threads."""

    @property
    def isa(self) -> str:
        """Name of the instruction set."""

    @property
    def num_threads(self) -> int:
        """Threads, the caller among them."""

    def make_linear(
        self, codes: NDArray[np.uint8], multipliers: NDArray[np.uint16] | None, scales: F32, n: int, k: int
    ) -> Linear:
        """A weight matrix [N, K] over flat arrays in the stored order (numerics/layout.py); they are kept, not
        copied."""

    def make_kv_cache(self, num_layers: int, num_pages: int, num_heads: int, head_dim: int, limbs: int) -> KvCache:
        """A paged cache; limbs 2 for 16-bit codes, 1 for 8-bit codes. MemoryError if it cannot be reserved."""

    def make_step(self, first_token: I32, positions: I32, page_table: I32) -> Step:
        """The tokens of one step: first_token [S+1], positions [T] consecutive in a sequence, page_table [S, pages]."""

    def embed(self, table: Linear, ids: I64, x: F32) -> None:
        """x [T, D] from token ids [T]. Clause 10.1."""

    def norm_quantise(
        self, x: F32, y: F32 | None, rows: I32 | None, num_rows: int, gain: F32, eps: float, codes: I16, scales: F32
    ) -> bool:
        """x += y, then norm and code16, for the given rows of x (all if None). Clause 5."""

    def linear(self, weight: Linear, codes: I16, scales: F32, num_rows: int, y: F32) -> None:
        """y [T, padded N]. Clause 4."""

    def add_bias(self, y: F32, num_rows: int, bias: F32) -> None:
        """y[:, :len(bias)] += bias. Clause 4.3."""

    def quantise(self, x: F32, num_rows: int, n: int, codes: I16, scales: F32) -> bool:
        """code16 of the first n values of each row. Clause 2.2."""

    def swiglu_quantise(self, gate_up: F32, num_rows: int, n: int, codes: I16, scales: F32) -> bool:
        """code16 of silu(row[:n]) * row[n:2n]. Clause 9.2."""

    def rope_table(
        self, position: int, frequency: NDArray[np.uint64], factor: float, cosine: F32, sine: F32, row: int
    ) -> None:
        """Row `row` of cosine and sine [T, d/2]. Clause 6."""

    def write_qkv(
        self,
        step: Step,
        qkv: F32,
        num_heads: int,
        cosine: F32,
        sine: F32,
        cache: KvCache,
        layer: int,
        query_codes: I16,
        query_scales: F32,
    ) -> bool:
        """Rotates and codes queries [T*H, dp], keys and values; the latter two into the cache. Clauses 6.4, 7."""

    def attend(
        self,
        step: Step,
        query_codes: I16,
        query_scales: F32,
        num_heads: int,
        cache: KvCache,
        layer: int,
        softmax_scale: float,
        window: int,
        out: F32,
    ) -> bool:
        """out [T, H*d]; window 0 means all keys. Clause 8."""

    def argmax(self, x: F32, num_rows: int, n: int, best: I64) -> None:
        """best [T]: the largest of the first n values, -1 where one is not finite. Clause 10.3."""

    def log_probabilities(self, x: F32, num_rows: int, n: int, out: F64) -> bool:
        """out [T, n]: log-probabilities among the first n values of each row. Clause 10.4."""

    def adjust(
        self,
        x: F32,
        n: int,
        bias_ids: I64,
        bias: F32,
        history_ids: I64,
        counts: I32,
        repetition: float,
        frequency: float,
        presence: float,
    ) -> bool:
        """Bias and penalties on the first n values of one row x [V], in place. spec/sampling.md 3."""

    def sample(
        self,
        x: F32,
        num_rows: int,
        n: int,
        temperature: F64,
        min_weight: I64,
        top_k: I64,
        top_p_q40: I64,
        u: U64,
        chosen: I64,
    ) -> None:
        """chosen [R] among the first n values of each row of x [R, V], where -infinity is an excluded id; -1 where one
        is NaN or +infinity or all are excluded. temperature, ..., u [R]. spec/sampling.md 4 to 6."""

    def read_kv(
        self,
        cache: KvCache,
        layer: int,
        page: int,
        slot: int,
        keys: I16,
        key_scales: F32,
        values: I16,
        value_scales: F32,
    ) -> None:
        """Codes [Hk, d] and scales [Hk] of one cached token."""
