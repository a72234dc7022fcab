"""Writes spec/vectors/*.vec: inputs and outputs of every operation, from the NumPy reference.

    python tools/make_vectors.py            rewrite them
    python tools/make_vectors.py --check    exit status 1 if one would change

A file is the 4 bytes "EXV1" and then cases until its end; all integers little-endian. A case: u32 number of arrays;
each array: u32 length of its name, the name, u32 dtype (0 u8, 1 i8, 2 u16, 3 i16, 4 i32, 5 i64, 6 u64, 7 f32, 8 f64),
u32 number of dimensions, u64 sizes, the values in row-major order. Scalars are arrays of one element. Inputs are named
as in kernels/api.py; outputs begin with "out.".
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exactlm.kernels.api import padded_codes
from exactlm.kernels.reference import ReferenceKernels
from exactlm.numerics.activation import log_probabilities
from exactlm.numerics.constant import softmax_scale
from exactlm.numerics.layout import pack_scales, pack_w8, pack_w16
from exactlm.numerics.rope import base_frequencies, to_turns
from exactlm.numerics.sampling import to_q40
from exactlm.numerics.weight import quantise_w8, quantise_w16

Case = dict[str, NDArray[np.generic]]
DTYPES = ["<u1", "<i1", "<u2", "<i2", "<i4", "<i8", "<u8", "<f4", "<f8"]
REFERENCE = ReferenceKernels()


class Random:
    """Heavy-tailed values from a counter generator, by exact operations only, so that they are the same everywhere."""

    def __init__(self, key: int) -> None:
        self._rng = np.random.Generator(np.random.Philox(key=key))

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        return self._rng.integers(low, high, shape)

    def values(self, shape: tuple[int, ...], exponent: int = 0) -> NDArray[np.float32]:
        mantissa = self.integers(-(1 << 23), 1 << 23, shape).astype(np.float32)
        spread = self.integers(-6, 3, shape) + 6 * (self.integers(0, 200, shape) == 0)
        return np.ldexp(mantissa, (spread + exponent - 23).astype(np.int32)).astype(np.float32)


def scalar(value: float, dtype: str = "<i4") -> NDArray[np.generic]:
    return np.array([value], dtype)


def quantise(r: Random) -> Iterator[Case]:
    for n, exponent in ((1, 0), (3, 90), (64, 0), (65, -90), (172, 0), (576, 20)):
        x = r.values((3, n), exponent)
        x[1] = 0
        x[2, 0] = np.ldexp(np.float32(1), exponent)
        codes, scales = np.zeros((3, padded_codes(n)), np.int16), np.zeros(3, np.float32)
        assert REFERENCE.quantise(x, 3, n, codes, scales)
        yield {"x": x, "n": scalar(n), "out.codes": codes, "out.scales": scales}


def norm_quantise(r: Random) -> Iterator[Case]:
    for n, eps in ((16, 1e-5), (64, 1e-6), (172, 1e-5), (576, 1e-5)):
        x, y, gain = r.values((4, n)), r.values((4, n)), r.values((n,))
        x[0, 5], x[2], y[2] = 24900, 0, 0
        after = x.copy()
        codes, scales = np.zeros((4, padded_codes(n)), np.int16), np.zeros(4, np.float32)
        assert REFERENCE.norm_quantise(after, y, None, 4, gain, eps, codes, scales)
        yield {
            "x": x,
            "y": y,
            "gain": gain,
            "eps": scalar(eps, "<f8"),
            "out.x": after,
            "out.codes": codes,
            "out.scales": scales,
        }


def swiglu_quantise(r: Random) -> Iterator[Case]:
    for n in (16, 172, 1536):
        gate_up = r.values((3, 2 * n), 3)
        codes, scales = np.zeros((3, padded_codes(n)), np.int16), np.zeros(3, np.float32)
        assert REFERENCE.swiglu_quantise(gate_up, 3, n, codes, scales)
        yield {"gate_up": gate_up, "n": scalar(n), "out.codes": codes, "out.scales": scales}


def linear(r: Random) -> Iterator[Case]:
    for tokens, n, k in ((1, 16, 4), (3, 5, 31), (2, 33, 64), (7, 48, 172), (5, 17, 576)):
        weight = r.values((n, k), -3)
        weight[n // 2] = 0
        codes = np.zeros((tokens, padded_codes(k)), np.int16)
        codes[:, :k] = r.integers(-32639, 32640, (tokens, k))
        codes[0, :k] = 32639
        scales = np.ldexp(np.float32(1), r.integers(-20, 5, (tokens,)).astype(np.int32))
        common = {"codes": codes, "scales": scales, "n": scalar(n), "k": scalar(k)}
        w16, w8 = quantise_w16(weight), quantise_w8(weight)
        packed8, multipliers = pack_w8(w8)
        for case, linear_weight in (
            ({"w": pack_w16(w16).reshape(-1), "s_w": pack_scales(w16.scales)}, w16),
            ({"w": packed8.reshape(-1), "multipliers": multipliers.reshape(-1), "s_w": pack_scales(w8.scales)}, w8),
        ):
            y = np.zeros((tokens, n), np.float32)
            REFERENCE.linear(linear_weight, codes, scales, tokens, y)
            x = np.zeros((n, k), np.float32)
            REFERENCE.embed(linear_weight, np.arange(n), x)
            yield {**common, **case, "out.y": y, "out.embedding": x}


def rope_table(r: Random) -> Iterator[Case]:
    frequency = to_turns(base_frequencies(100000.0, 64))
    positions = [0, 1, 2, 31, 511, 8191, 131071, *r.integers(0, 131072, (57,)).tolist()]
    cosine, sine = np.zeros((64, 32), np.float32), np.zeros((64, 32), np.float32)
    for factor in (1.0, 1.1386294603347778):
        for row, position in enumerate(positions):
            REFERENCE.rope_table(position, frequency, factor, cosine, sine, row)
        yield {
            "positions": np.array(positions, np.int32),
            "frequency": frequency,
            "factor": scalar(factor, "<f4"),
            "out.cosine": cosine.copy(),
            "out.sine": sine.copy(),
        }


def attention(r: Random) -> Iterator[Case]:
    first_token, positions = (
        np.array([0, 40, 45, 46], np.int32),
        np.concatenate([np.arange(40), np.arange(5), np.arange(1)]),
    )
    page_table = np.array([[3, 1], [2, 0], [4, 0]], np.int32)
    for limbs in (2, 1):
        for heads, kv_heads, d, window in ((9, 3, 64, 0), (8, 2, 16, 24), (4, 4, 6, 0), (2, 1, 80, 33), (2, 2, 256, 0)):
            tokens = len(positions)
            qkv = r.values((tokens, (heads + 2 * kv_heads) * d), 1)
            frequency = r.integers(0, 1 << 62, (d // 2,)).astype(np.uint64)
            cosine, sine = np.zeros((tokens, d // 2), np.float32), np.zeros((tokens, d // 2), np.float32)
            for t, position in enumerate(positions.tolist()):
                REFERENCE.rope_table(position, frequency, 1.0, cosine, sine, t)
            step = REFERENCE.make_step(first_token, positions.astype(np.int32), page_table)
            cache = REFERENCE.make_kv_cache(1, 5, kv_heads, d, limbs)
            codes, scales = np.zeros((tokens * heads, -(-d // 16) * 16), np.int16), np.zeros(tokens * heads, np.float32)
            assert REFERENCE.write_qkv(step, qkv, heads, cosine, sine, cache, 0, codes, scales)
            out = np.zeros((tokens, heads * d), np.float32)
            scale = float(softmax_scale(d))
            assert REFERENCE.attend(step, codes, scales, heads, cache, 0, scale, window, out)
            yield {
                "first_token": first_token,
                "positions": positions.astype(np.int32),
                "page_table": page_table,
                "qkv": qkv,
                "cosine": cosine,
                "sine": sine,
                "shape": np.array([heads, kv_heads, d, limbs, window, 5], np.int32),
                "softmax_scale": scalar(scale, "<f4"),
                "out.query_codes": codes,
                "out.query_scales": scales,
                "out.keys": cache.keys[0],
                "out.key_scales": cache.key_scales[0],
                "out.values": cache.values[0],
                "out.value_scales": cache.value_scales[0],
                "out.attended": out,
            }


def logprob(r: Random) -> Iterator[Case]:
    logits = r.values((4, 517), 3)
    logits[1] = 1
    logits[2, 3:] = -1e30
    best = np.zeros(4, np.int64)
    REFERENCE.argmax(logits, 4, 517, best)
    yield {"logits": logits, "out.best": best, "out.logprobs": log_probabilities(logits)}


def adjust(r: Random) -> Iterator[Case]:
    for repetition, frequency, presence in ((1.0, 0.0, 0.0), (1.3, 0.0, 0.0), (0.7, 0.5, -1.25), (1.0, -0.1, 2.0)):
        x = r.values((517,), 3)
        x[7], x[8] = 0.0, -0.0
        bias_ids, history = np.arange(3, 500, 71), np.arange(0, 517, 3)
        bias = r.values((len(bias_ids),), 2)
        counts = r.integers(0, 4, (len(history),)).astype(np.int32)
        after = x.copy()
        assert REFERENCE.adjust(after, 517, bias_ids, bias, history, counts, repetition, frequency, presence)
        yield {
            "x": x,
            "bias_ids": bias_ids,
            "bias": bias,
            "history_ids": history,
            "counts": counts,
            "penalties": np.array([repetition, frequency, presence]),
            "out.x": after,
        }


def sampling(r: Random) -> Iterator[Case]:
    for spread in (-20, 0, 2, 5):
        x = r.values((24, 517), spread)
        x[3], x[4, ::2], x[5, 1:], x[6] = 1, 0.0, -np.inf, -0.0
        x[7, r.integers(0, 517, (300,))] = -np.inf
        x[8] = np.round(x[8])
        temperature = np.array([1.0, 0.7, 1e-3, 1.0, 2.0, 1000.0, 0.001, 0.0] * 3)
        min_p = np.array([0.0, 0.0, 0.05, 0.0, 0.5, 1.0] * 4)
        top_k = np.array([0, 1, 5, 0, 1000] * 5)[:24]
        top_p = np.array([1.0, 1.0, 0.9, 0.5, 0.0, 0.1, 1e-9] * 4)[:24]
        u = r.integers(0, 1 << 32, (24,)).astype(np.uint64) << np.uint64(32)
        u[0], u[1], u[9] = 0, (1 << 64) - 1, (1 << 64) - 1
        chosen = np.zeros(24, np.int64)
        limits = np.array([to_q40(p) for p in min_p]), top_k, np.array([to_q40(p) for p in top_p])
        REFERENCE.sample(x, 24, 517, temperature, *limits, u, chosen)
        assert (chosen >= 0).all()
        yield {
            "x": x,
            "temperature": temperature,
            "min_weight": limits[0],
            "top_k": top_k,
            "top_p_q40": limits[2],
            "u": u,
            "out.chosen": chosen,
        }


OPERATIONS = (quantise, norm_quantise, swiglu_quantise, linear, rope_table, attention, logprob, adjust, sampling)


def encode(cases: Iterator[Case]) -> bytes:
    """The bytes of one file."""
    parts = [b"EXV1"]
    for case in cases:
        parts.append(struct.pack("<I", len(case)))
        for name, array in case.items():
            little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
            kind = DTYPES.index(np.dtype(little.dtype).newbyteorder("<").str.replace("|", "<"))
            parts.append(struct.pack("<I", len(name)) + name.encode() + struct.pack("<II", kind, array.ndim))
            parts.append(struct.pack(f"<{array.ndim}Q", *array.shape) + little.tobytes())
    return b"".join(parts)


def main() -> int:
    """Writes or checks all files."""
    folder = Path(__file__).parent.parent / "spec" / "vectors"
    changed = []
    for key, operation in enumerate(OPERATIONS):
        path, data = folder / f"{operation.__name__}.vec", encode(operation(Random(key)))
        if not path.is_file() or path.read_bytes() != data:
            changed.append(path.name)
            if "--check" not in sys.argv:
                path.write_bytes(data)
    print(f"{'would change' if '--check' in sys.argv else 'written'}: {', '.join(changed) or 'none'}")
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
