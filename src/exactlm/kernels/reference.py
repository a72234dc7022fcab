"""The NumPy implementation of the contract: exactlm.numerics behind the signatures of kernels/api.py. Slow, and the
definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError
from exactlm.kernels.api import F32, F64, I16, I32, I64, PAGE_TOKENS, U64
from exactlm.numerics import sampling
from exactlm.numerics.activation import argmax, log_probabilities, swiglu
from exactlm.numerics.attention import attention_row
from exactlm.numerics.code import code8, code16
from exactlm.numerics.layout import unpack_w8, unpack_w16
from exactlm.numerics.linear import linear
from exactlm.numerics.norm import rms_norm
from exactlm.numerics.rope import hadamard, rotate, sine_cosine
from exactlm.numerics.weight import W8, W16


class KvCache:
    """Codes [layers, pages, 32, Hk, d] and scales [layers, pages, 32, Hk]."""

    def __init__(self, num_layers: int, num_pages: int, num_heads: int, head_dim: int, limbs: int) -> None:
        shape = (num_layers, num_pages, PAGE_TOKENS, num_heads, head_dim)
        self.limbs, self.num_pages = limbs, num_pages
        self.keys, self.values = np.zeros(shape, np.int16), np.zeros(shape, np.int16)
        self.key_scales, self.value_scales = np.zeros(shape[:-1], np.float32), np.zeros(shape[:-1], np.float32)


@dataclass(frozen=True)
class Step:
    first_token: I32
    positions: I32
    page_table: I32

    def sequence_of(self, token: int) -> int:
        return int(np.searchsorted(self.first_token, token, side="right")) - 1


class ReferenceKernels:
    """See kernels/api.py."""

    isa = "reference"
    num_threads = 1

    def make_linear(
        self, codes: NDArray[np.uint8], multipliers: NDArray[np.uint16] | None, scales: F32, n: int, k: int
    ) -> W16 | W8:
        if multipliers is None:
            return unpack_w16(codes, scales, n, k)
        return unpack_w8(codes, multipliers, scales, n, k)

    def make_kv_cache(self, num_layers: int, num_pages: int, num_heads: int, head_dim: int, limbs: int) -> KvCache:
        return KvCache(num_layers, num_pages, num_heads, head_dim, limbs)

    def make_step(self, first_token: I32, positions: I32, page_table: I32) -> Step:
        return Step(first_token, positions, page_table)

    def embed(self, table: W16 | W8, ids: I64, x: F32) -> None:
        if isinstance(table, W16):
            rows = W16(table.codes[ids], table.scales[ids]).dequantise()
        else:
            rows = W8(table.codes[ids], table.multipliers[ids], table.scales[ids]).dequantise()
        x[: len(ids)] = rows[:, : x.shape[1]]

    def norm_quantise(
        self, x: F32, y: F32 | None, rows: I32 | None, num_rows: int, gain: F32, eps: float, codes: I16, scales: F32
    ) -> bool:
        index = np.arange(num_rows) if rows is None else rows
        if y is not None:
            x[index] = x[index] + y[index, : x.shape[1]]
        try:
            normed = rms_norm(x[index], gain[: x.shape[1]], eps)
        except NumericError:
            return False
        return self.quantise(normed, num_rows, x.shape[1], codes, scales)

    def linear(self, weight: W16 | W8, codes: I16, scales: F32, num_rows: int, y: F32) -> None:
        n, k = weight.codes.shape
        y[:num_rows, :n] = linear(codes[:num_rows, :k], scales[:num_rows], weight)

    def add_bias(self, y: F32, num_rows: int, bias: F32) -> None:
        y[:num_rows, : len(bias)] += bias[None, :]

    def quantise(self, x: F32, num_rows: int, n: int, codes: I16, scales: F32) -> bool:
        try:
            q, s = code16(x[:num_rows, :n])
        except NumericError:
            return False
        codes[:num_rows] = 0
        codes[:num_rows, :n] = q
        scales[:num_rows] = s
        return True

    def swiglu_quantise(self, gate_up: F32, num_rows: int, n: int, codes: I16, scales: F32) -> bool:
        with np.errstate(all="ignore"):
            y = swiglu(gate_up[:num_rows, :n], gate_up[:num_rows, n : 2 * n])
        return self.quantise(y, num_rows, n, codes, scales)

    def rope_table(
        self, position: int, frequency: NDArray[np.uint64], factor: float, cosine: F32, sine: F32, row: int
    ) -> None:
        cosine[row], sine[row] = sine_cosine(position, frequency, np.float32(factor))

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
        num_kv, d = cache.keys.shape[3:]
        tokens = len(step.positions)
        heads = qkv[:tokens, : (num_heads + 2 * num_kv) * d].reshape(tokens, -1, d)
        c, s = cosine[:tokens, None, :], sine[:tokens, None, :]
        query, key = rotate(heads[:, :num_heads], c, s), rotate(heads[:, num_heads : num_heads + num_kv], c, s)
        value = heads[:, num_heads + num_kv :]
        if cache.limbs == 1:
            query, key = hadamard(query, False), hadamard(key, True)
        encode = code16 if cache.limbs == 2 else code8
        try:
            (q, q_scale), (k, k_scale), (v, v_scale) = code16(query), encode(key), encode(value)
        except NumericError:
            return False
        query_codes[: tokens * num_heads] = 0
        query_codes[: tokens * num_heads, :d] = q.reshape(-1, d)
        query_scales[: tokens * num_heads] = q_scale.reshape(-1)
        for t, position in enumerate(step.positions.tolist()):
            page = int(step.page_table[step.sequence_of(t), position // PAGE_TOKENS])
            at = (layer, page, position % PAGE_TOKENS)
            cache.keys[at], cache.key_scales[at] = k[t], k_scale[t]
            cache.values[at], cache.value_scales[at] = v[t], v_scale[t]
        return True

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
        num_kv, d = cache.keys.shape[3:]
        group = num_heads // num_kv
        for t, position in enumerate(step.positions.tolist()):
            used = np.arange(max(0, position + 1 - window) if window else 0, position + 1)
            pages, slots = step.page_table[step.sequence_of(t), used // PAGE_TOKENS], used % PAGE_TOKENS
            for h in range(num_heads):
                at = (layer, pages, slots, h // group)
                try:
                    row = attention_row(
                        query_codes[t * num_heads + h, :d],
                        query_scales[t * num_heads + h],
                        cache.keys[at],
                        cache.key_scales[at],
                        cache.values[at],
                        cache.value_scales[at],
                        np.float32(softmax_scale),
                    )
                except NumericError:
                    return False
                out[t, h * d : (h + 1) * d] = row
        return True

    def argmax(self, x: F32, num_rows: int, n: int, best: I64) -> None:
        for t in range(num_rows):
            try:
                best[t] = argmax(x[t, :n])
            except NumericError:
                best[t] = -1

    def log_probabilities(self, x: F32, num_rows: int, n: int, out: F64) -> bool:
        try:
            out[:num_rows] = log_probabilities(x[:num_rows, :n])
        except NumericError:
            return False
        return True

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
        try:
            sampling.adjust(x[:n], bias_ids, bias, history_ids, counts, repetition, frequency, presence)
        except NumericError:
            return False
        return True

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
        for r in range(num_rows):
            limits = float(temperature[r]), int(min_weight[r]), int(top_k[r]), int(top_p_q40[r]), int(u[r])
            try:
                chosen[r] = sampling.sample(x[r, :n], *limits)
            except NumericError:
                chosen[r] = -1

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
        keys[:], key_scales[:] = cache.keys[layer, page, slot], cache.key_scales[layer, page, slot]
        values[:], value_scales[:] = cache.values[layer, page, slot], cache.value_scales[layer, page, slot]
