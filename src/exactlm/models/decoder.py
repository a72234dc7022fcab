"""THE forward pass: one decoder of the Llama family over any implementation of kernels/api.py.

Reads like the model: embed, then per layer attention and feed-forward, then norm and head. Knows nothing of requests,
pages' owners or sampling. Every array is preallocated for `max_tokens` tokens of one step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import NumericError
from exactlm.kernels.api import F32, I16, I32, I64, Kernels, KvCache, padded_codes
from exactlm.models.config import ModelConfig
from exactlm.models.rope import RopeFrequencies
from exactlm.models.weights import DecoderWeights, Layer
from exactlm.numerics.constant import softmax_scale
from exactlm.numerics.layout import TILE

HEAD_ROWS = 64  # logits are made for at most this many rows at once
FFN_ROWS = 192  # so is the feed-forward block, whose arrays are the widest: those of a whole step would be the largest


def _tiles(n: int) -> int:
    return -(-n // TILE) * TILE


class Workspace:
    """Arrays of one step of at most `tokens` tokens (T)."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        c = config
        q = c.num_heads * c.head_dim
        kv = c.num_kv_heads * c.head_dim
        self.x = np.zeros((tokens, c.hidden_size), np.float32)
        self.y = np.zeros((tokens, _tiles(c.hidden_size)), np.float32)
        self.hidden_codes = np.zeros((tokens, padded_codes(c.hidden_size)), np.int16)
        self.scales = np.zeros(tokens, np.float32)
        self.qkv = np.zeros((tokens, _tiles(q + 2 * kv)), np.float32)
        self.query_codes = np.zeros((tokens * c.num_heads, _tiles(c.head_dim)), np.int16)
        self.query_scales = np.zeros(tokens * c.num_heads, np.float32)
        self.attended = np.zeros((tokens, q), np.float32)
        self.attended_codes = np.zeros((tokens, padded_codes(q)), np.int16)
        ffn_rows = min(tokens, FFN_ROWS)
        self.gate_up = np.zeros((ffn_rows, _tiles(2 * c.intermediate_size)), np.float32)
        self.ffn_codes = np.zeros((ffn_rows, padded_codes(c.intermediate_size)), np.int16)
        self.ffn_scales = np.zeros(ffn_rows, np.float32)
        self.cosine = np.zeros((tokens, c.head_dim // 2), np.float32)
        self.sine = np.zeros((tokens, c.head_dim // 2), np.float32)
        self.final_codes = np.zeros((tokens, padded_codes(c.hidden_size)), np.int16)
        self.final_scales = np.zeros(tokens, np.float32)
        self.logits = np.zeros((min(tokens, HEAD_ROWS), _tiles(c.vocab_size)), np.float32)
        self.logprobs = np.empty((len(self.logits), c.num_tokens), np.float64)  # memory is taken as rows are used
        self.best = np.zeros(len(self.logits), np.int64)


class Decoder:
    """A model ready to run: weights, kernels and the arrays of a step."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, kernels: Kernels, max_tokens: int) -> None:
        self.config, self.weights, self.kernels, self.max_tokens = config, weights, kernels, max_tokens
        self.frequencies = RopeFrequencies(config)
        self.softmax_scale = float(softmax_scale(config.head_dim))
        self.window = config.attention_window or 0
        self._w = Workspace(config, max_tokens)

    def make_cache(self, num_pages: int) -> KvCache:
        """An empty KV cache of `num_pages` pages of 32 tokens."""
        c = self.config
        limbs = 2 if c.kv_cache == "int16" else 1
        return self.kernels.make_kv_cache(c.num_layers, num_pages, c.num_kv_heads, c.head_dim, limbs)

    def forward(
        self, ids: I64, first_token: I32, positions: I32, page_table: I32, rows: I32, cache: KvCache
    ) -> tuple[I16, F32]:
        """Runs one step of T tokens of S sequences; returns the final norm's codes [R, padded D] and scales [R] of
        `rows`.

        ids [T]; first_token [S+1]; positions [T]; page_table [S, pages]; rows [R], indices into T. The results are
        views that the next step overwrites. Raises NumericError if a value becomes NaN or infinite.
        """
        k, w, n = self.kernels, self._w, len(ids)
        step = k.make_step(first_token, positions, page_table)
        k.embed(self.weights.embed, ids, w.x)
        for t, position in enumerate(positions.tolist()):
            k.rope_table(position, self.frequencies.at(position), self.frequencies.factor, w.cosine, w.sine, t)
        y: F32 | None = None
        for i, layer in enumerate(self.weights.layers):
            self._attention(i, layer, y, step, cache, n)
            self._feed_forward(i, layer, n)
            y = w.y
        eps, gain = self.config.rms_norm_eps, self.weights.final_norm
        if not k.norm_quantise(w.x, y, rows, len(rows), gain, eps, w.final_codes, w.final_scales):
            raise NumericError("the hidden state before the final norm holds a NaN or infinity")
        return w.final_codes[: len(rows)], w.final_scales[: len(rows)]

    def logits(self, codes: I16, scales: F32) -> F32:
        """Logits [R, V] of at most HEAD_ROWS rows of final codes [R, padded D]; a view that the next call
        overwrites."""
        self.kernels.linear(self.weights.head, codes, scales, len(codes), self._w.logits)
        return self._w.logits[: len(codes), : self.config.vocab_size]

    def choose(self, num_rows: int, excluded: I64) -> list[int]:
        """Greedy choice for each row of the last logits(), never one of the ids `excluded`; -1 where a logit is not
        finite."""
        logits = self._w.logits[:num_rows]
        kept = logits[:, excluded]
        logits[:, excluded] = np.where(np.isfinite(kept), -np.finfo(np.float32).max, kept)
        self.kernels.argmax(self._w.logits, num_rows, self.config.num_tokens, self._w.best)
        logits[:, excluded] = kept
        return [int(i) for i in self._w.best[:num_rows]]

    def log_probabilities(self, first: int, end: int) -> NDArray[np.float64]:
        """Log-probabilities [R, num_tokens] of rows [first, end) of the last logits(); a view that the next call
        overwrites."""
        values = self._w.logprobs[: end - first]
        if not self.kernels.log_probabilities(self._w.logits[first:end], end - first, self.config.num_tokens, values):
            raise NumericError("a logit is NaN or infinite")
        return values

    def _attention(self, i: int, layer: Layer, y: F32 | None, step: object, cache: KvCache, n: int) -> None:
        k, w, c = self.kernels, self._w, self.config
        ok = k.norm_quantise(w.x, y, None, n, layer.attention_norm, c.rms_norm_eps, w.hidden_codes, w.scales)
        self._linear(layer.qkv, layer.qkv_bias, w.hidden_codes[:n], w.scales[:n], w.qkv)
        ok = ok and k.write_qkv(step, w.qkv, c.num_heads, w.cosine, w.sine, cache, i, w.query_codes, w.query_scales)
        ok = ok and k.attend(
            step, w.query_codes, w.query_scales, c.num_heads, cache, i, self.softmax_scale, self.window, w.attended
        )
        ok = ok and k.quantise(w.attended, n, w.attended.shape[1], w.attended_codes, w.scales)
        if not ok:
            raise NumericError(f"layer {i}: attention met a NaN or infinity")
        self._linear(layer.output, layer.output_bias, w.attended_codes[:n], w.scales[:n], w.y)

    def _feed_forward(self, i: int, layer: Layer, n: int) -> None:
        k, w, c = self.kernels, self._w, self.config
        ok = k.norm_quantise(w.x, w.y, None, n, layer.ffn_norm, c.rms_norm_eps, w.hidden_codes, w.scales)
        for begin in range(0, n, FFN_ROWS):
            rows = slice(begin, min(begin + FFN_ROWS, n))
            count = rows.stop - begin
            self._linear(layer.gate_up, layer.gate_up_bias, w.hidden_codes[rows], w.scales[rows], w.gate_up)
            ok = ok and k.swiglu_quantise(w.gate_up, count, c.intermediate_size, w.ffn_codes, w.ffn_scales)
            if not ok:
                raise NumericError(f"layer {i}: the feed-forward block met a NaN or infinity")
            self._linear(layer.down, layer.down_bias, w.ffn_codes[:count], w.ffn_scales[:count], w.y[rows])

    def _linear(self, weight: object, bias: F32 | None, codes: I16, scales: F32, y: F32) -> None:
        self.kernels.linear(weight, codes, scales, len(codes), y)
        if bias is not None:
            self.kernels.add_bias(y, len(codes), bias)


def read_cache(
    decoder: Decoder, cache: KvCache, pages: list[int], num_tokens: int, layer: int
) -> tuple[NDArray[np.int16], F32, NDArray[np.int16], F32]:
    """Key codes [T, Hk, d], key scales [T, Hk], value codes, value scales of one layer of one sequence."""
    c = decoder.config
    shape = (num_tokens, c.num_kv_heads, c.head_dim)
    keys, values = np.zeros(shape, np.int16), np.zeros(shape, np.int16)
    key_scales, value_scales = np.zeros(shape[:2], np.float32), np.zeros(shape[:2], np.float32)
    for t in range(num_tokens):
        page, slot = pages[t // 32], t % 32
        decoder.kernels.read_kv(cache, layer, page, slot, keys[t], key_scales[t], values[t], value_scales[t])
    return keys, key_scales, values, value_scales
