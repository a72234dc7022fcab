"""A small model that needs no file: its weights are Philox words, so it is the same on every machine.

Knows the stored order of weights; not what the doctor does with them.
"""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from exactlm.models.config import ModelConfig
from exactlm.models.weights import Matrix, Vector, plan
from exactlm.numerics.layout import TILE, flat_multipliers, pack_scales, pack_w8, pack_w16
from exactlm.numerics.philox import philox4x64
from exactlm.numerics.weight import quantise_w8, quantise_w16

_KEY = (0x6578616374, 0x6C6D)


def make_config(precision: str, kv_cache: str) -> ModelConfig:
    """Two layers; sizes that are no multiples of vectors or tiles."""
    return ModelConfig(
        model_type="llama",
        vocab_size=250,
        num_tokens=250,
        hidden_size=72,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        head_dim=12,
        intermediate_size=100,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=False,
        attention_window=None,
        precision=precision,
        kv_cache=kv_cache,
    )


def make_arrays(config: ModelConfig) -> dict[str, NDArray[np.generic]]:
    """The tensors of the model as its file would hold them."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for number, item in enumerate(plan(config)):
        if isinstance(item, Vector):
            values = draw_values(number, item.n)
            values = values if item.name.endswith(".bias") else np.float32(1) + values / np.float32(4)
            arrays[item.name] = np.pad(values, (0, -item.n % TILE))
        else:
            arrays |= _store(item, draw_values(number, item.n * item.k).reshape(item.n, item.k), config.precision)
    return arrays


def draw_values(number: int, size: int) -> NDArray[np.float32]:
    """`size` values in (-1, 1), multiples of 2^-15, of the stream `number`."""
    words: list[int] = []
    for counter in count():
        if 4 * len(words) >= size:
            break
        words += philox4x64(_KEY, (counter, number, 0, 0))
    codes = np.array(words, np.uint64).astype("<u8").view("<i2")[:size]
    return np.asarray(codes.astype(np.float32) * np.float32(2.0**-15))


def _store(item: Matrix, weights: NDArray[np.float32], precision: str) -> dict[str, NDArray[np.generic]]:
    if precision == "fp16":
        w16 = quantise_w16(weights)
        return {f"{item.name}.codes": pack_w16(w16), f"{item.name}.scales": pack_scales(w16.scales)}
    w8 = quantise_w8(weights)
    codes, multipliers = pack_w8(w8)
    return {
        f"{item.name}.codes": codes,
        f"{item.name}.multipliers": flat_multipliers(multipliers),
        f"{item.name}.scales": pack_scales(w8.scales),
    }
