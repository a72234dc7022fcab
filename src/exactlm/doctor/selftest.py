"""Recomputes digests that were pinned from the NumPy reference: every elementwise operation over all float16 values,
and answers of a small model.

Knows kernels and the engine; not what a difference means for whom.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from exactlm.doctor.builtin import draw_values, make_arrays, make_config
from exactlm.engine.config import EngineConfig
from exactlm.engine.engine import Engine
from exactlm.engine.sampling_params import SamplingParams
from exactlm.kernels.api import Kernels
from exactlm.models.decoder import Decoder
from exactlm.models.weights import load_weights
from exactlm.numerics.philox import draw
from exactlm.numerics.sampling import ONE_Q40

ROWS, COLUMNS = 62, 1024  # 63,488 values: all of float16 that are finite
MODELS = (("fp16", "int16"), ("int8", "int8"))
PROMPTS = [5, 40, 17]  # lengths
Digests = dict[str, str]


def read_pins() -> Digests:
    """The digests that every machine must find."""
    pins = json.loads(files("exactlm.doctor").joinpath("pin.json").read_text("ascii"))
    return dict(pins)


def compute(kernels: Kernels) -> Digests:
    """What these kernels find."""
    found = {name: operation(kernels) for name, operation in _OPERATIONS.items()}
    for precision, kv_cache in MODELS:
        found[f"model {precision}, {kv_cache} cache"] = _run_model(kernels, precision, kv_cache)
    return found


def prepare() -> None:
    """Makes what is computed on, before anything else is changed in this process."""
    make_values()
    for precision, kv_cache in MODELS:
        _make_model(precision, kv_cache)


@lru_cache(maxsize=1)
def make_values() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """All finite float16 values [62, 1024]: in the order of their bits, one binade a row; and well mixed."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    ordered = values[np.isfinite(values)].astype(np.float32)
    mixed = ordered[np.arange(ordered.size) * 40503 % ordered.size]  # 40503 shares no factor with 62 * 1024
    return ordered.reshape(ROWS, COLUMNS), mixed.reshape(ROWS, COLUMNS)


def _digest(*arrays: NDArray[np.generic]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _make_codes() -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    return np.zeros((ROWS, COLUMNS), np.int16), np.zeros(ROWS, np.float32)


def _quantise(kernels: Kernels) -> str:
    results: list[NDArray[np.generic]] = []
    for x in make_values():
        codes, scales = _make_codes()
        assert kernels.quantise(x, ROWS, COLUMNS, codes, scales)
        results += [codes, scales]
    return _digest(*results)


def _norm_quantise(kernels: Kernels) -> str:
    results: list[NDArray[np.generic]] = []
    ordered, mixed = make_values()
    for x, y in ((ordered.copy(), mixed), (mixed.copy(), ordered)):
        codes, scales = _make_codes()
        assert kernels.norm_quantise(x, y, None, ROWS, mixed[1], 1e-5, codes, scales)
        results += [x, codes, scales]
    return _digest(*results)


def _add_bias(kernels: Kernels) -> str:
    ordered, mixed = make_values()
    y = ordered.copy()
    for bias in mixed[:4]:
        kernels.add_bias(y, ROWS, bias)
    return _digest(y)


def _swiglu_quantise(kernels: Kernels) -> str:
    results: list[NDArray[np.generic]] = []
    ordered, mixed = make_values()
    for gate, up in ((ordered, mixed), (mixed, ordered), (ordered, np.ones_like(ordered))):
        codes, scales = _make_codes()
        assert kernels.swiglu_quantise(np.concatenate([gate, up], axis=1), ROWS, COLUMNS, codes, scales)
        results += [codes, scales]
    return _digest(*results)


def _rope_table(kernels: Kernels) -> str:
    frequency = np.array([draw(1, 0, i) >> i for i in range(32)], np.uint64)
    positions = [*range(256), 4095, 8191, 131071, (1 << 24) - 1]
    cosine, sine = np.zeros((2, len(positions), 32), np.float32)
    for row, position in enumerate(positions):
        kernels.rope_table(position, frequency, 1.25, cosine, sine, row)
    return _digest(cosine, sine)


def _log_probabilities(kernels: Kernels) -> str:
    results = []
    for x in make_values():
        out = np.zeros((ROWS, COLUMNS), np.float64)
        assert kernels.log_probabilities(x, ROWS, COLUMNS, out)
        results.append(out)
    return _digest(*results)


def _adjust(kernels: Kernels) -> str:
    ordered, mixed = (x.reshape(-1) for x in make_values())
    x, ids = ordered.copy(), np.arange(ordered.size, dtype=np.int64)
    counts = (ids % 5).astype(np.int32)
    assert kernels.adjust(x, x.size, ids[::2], mixed[::2].copy(), ids[::3], counts[::3].copy(), 1.3, 0.7, -0.4)
    return _digest(x)


def _choose(kernels: Kernels) -> str:
    """Arg max, and draws at several temperatures and cuts."""
    results: list[NDArray[np.generic]] = []
    for x in make_values():
        best, chosen = np.zeros(ROWS, np.int64), np.zeros(ROWS, np.int64)
        kernels.argmax(x, ROWS, COLUMNS, best)
        rows = range(ROWS)
        temperature = np.array([(0.0, 0.7, 1.0, 30.0)[i % 4] for i in rows])
        min_weight = np.array([(0, 1 << 20)[i % 2] for i in rows], np.int64)
        top_k = np.array([(0, 3, 40)[i % 3] for i in rows], np.int64)
        top_p = np.array([(ONE_Q40, ONE_Q40 // 2)[i % 5 == 0] for i in rows], np.int64)
        u = np.array([draw(7, 0, i) for i in rows], np.uint64)
        kernels.sample(x, ROWS, COLUMNS, temperature, min_weight, top_k, top_p, u, chosen)
        results += [best, chosen]
    return _digest(*results)


_OPERATIONS = {
    "quantise": _quantise,
    "norm_quantise": _norm_quantise,
    "add_bias": _add_bias,
    "swiglu_quantise": _swiglu_quantise,
    "rope_table": _rope_table,
    "log_probabilities": _log_probabilities,
    "adjust": _adjust,
    "argmax and sample": _choose,
}


@lru_cache(maxsize=4)
def _make_model(precision: str, kv_cache: str) -> dict[str, NDArray[np.generic]]:
    return make_arrays(make_config(precision, kv_cache))


def _run_model(kernels: Kernels, precision: str, kv_cache: str) -> str:
    """Answers of the built-in model, greedy and drawn: embedding, products, attention and the cache are in them."""
    config, limits = make_config(precision, kv_cache), EngineConfig(max_batch=4, chunk_tokens=24, kv_tokens=512)
    weights = load_weights(_make_model(precision, kv_cache), config, kernels)
    engine = Engine(Decoder(config, weights, kernels, limits.step_tokens), frozenset(), frozenset(), limits)
    sequences = []
    for number, length in enumerate(PROMPTS):
        ids = [int(i) for i in np.abs(draw_values(99 + number, length) * np.float32(249.0)).astype(np.int64)]
        params = SamplingParams(max_tokens=8, temperature=0.8 * (number % 2), seed=number, ignore_eos=True)
        sequences.append(engine.add(ids, params))
    while not all(sequence.is_finished for sequence in sequences):
        engine.step()
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
    return _digest(*(np.frombuffer(bytes.fromhex(s.digest.hexdigest()), np.uint8) for s in sequences))
