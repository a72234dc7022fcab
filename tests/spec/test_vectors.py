"""Every compiled instruction set gives the bytes of spec/vectors, and the reference still gives them too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from exactlm.kernels.api import Kernels
from exactlm.kernels.select import available_isas, select_kernels

from .conftest import Case, read_vectors


def same(found: NDArray[np.generic], expected: NDArray[np.generic]) -> bool:
    """Equal bytes; unlike ==, tells -0 from +0 and one NaN from another."""
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


@pytest.fixture(params=available_isas())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return select_kernels(request.param, 3)


def code_arrays(case: Case) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Output arrays filled with what must be overwritten."""
    return np.full_like(case["out.codes"], 99), np.full_like(case["out.scales"], np.nan)


def test_reference_still_makes_these_vectors() -> None:
    script = Path(__file__).parents[2] / "tools" / "make_vectors.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_comparison_sees_one_flipped_bit() -> None:
    case = read_vectors("quantise")[2]
    wrong = case["out.scales"].copy()
    wrong.view(np.uint32)[0] ^= 1
    assert not same(wrong, case["out.scales"])


@pytest.mark.parametrize("case", read_vectors("quantise"))
def test_quantise(kernels: Kernels, case: Case) -> None:
    codes, scales = code_arrays(case)
    assert kernels.quantise(case["x"], len(codes), int(case["n"][0]), codes, scales)
    assert same(codes, case["out.codes"])
    assert same(scales, case["out.scales"])


@pytest.mark.parametrize("case", read_vectors("norm_quantise"))
def test_norm_quantise(kernels: Kernels, case: Case) -> None:
    codes, scales = code_arrays(case)
    x = case["x"].copy()
    assert kernels.norm_quantise(x, case["y"], None, len(x), case["gain"], float(case["eps"][0]), codes, scales)
    assert same(x, case["out.x"])
    assert same(codes, case["out.codes"])
    assert same(scales, case["out.scales"])


@pytest.mark.parametrize("case", read_vectors("norm_quantise"))
def test_norm_of_chosen_rows_equals_norm_of_all(kernels: Kernels, case: Case) -> None:
    rows = np.array([3, 0], np.int32)
    codes, scales = code_arrays(case)
    x = case["x"].copy()
    assert kernels.norm_quantise(x, case["y"], rows, 2, case["gain"], float(case["eps"][0]), codes, scales)
    assert same(codes[:2], case["out.codes"][rows])
    assert same(x[rows], case["out.x"][rows])
    assert same(x[1], case["x"][1])


@pytest.mark.parametrize("case", read_vectors("swiglu_quantise"))
def test_swiglu_quantise(kernels: Kernels, case: Case) -> None:
    codes, scales = code_arrays(case)
    assert kernels.swiglu_quantise(case["gate_up"], len(codes), int(case["n"][0]), codes, scales)
    assert same(codes, case["out.codes"])
    assert same(scales, case["out.scales"])


@pytest.mark.parametrize("case", read_vectors("linear"))
def test_linear_and_embedding(kernels: Kernels, case: Case) -> None:
    n, k, tokens = int(case["n"][0]), int(case["k"][0]), len(case["codes"])
    weight = kernels.make_linear(case["w"], case.get("multipliers"), case["s_w"], n, k)
    y = np.full((tokens, len(case["s_w"])), np.nan, np.float32)
    kernels.linear(weight, case["codes"], case["scales"], tokens, y)
    assert same(np.ascontiguousarray(y[:, :n]), case["out.y"])
    x = np.full((n, k), np.nan, np.float32)
    kernels.embed(weight, np.arange(n), x)
    assert same(x, case["out.embedding"])


@pytest.mark.parametrize("case", read_vectors("rope_table"))
def test_rope_table(kernels: Kernels, case: Case) -> None:
    cosine, sine = np.zeros_like(case["out.cosine"]), np.zeros_like(case["out.sine"])
    for row, position in enumerate(case["positions"].tolist()):
        kernels.rope_table(position, case["frequency"], float(case["factor"][0]), cosine, sine, row)
    assert same(cosine, case["out.cosine"])
    assert same(sine, case["out.sine"])


@pytest.mark.parametrize("case", read_vectors("attention"))
def test_attention(kernels: Kernels, case: Case) -> None:
    heads, kv_heads, d, limbs, window, num_pages = case["shape"].tolist()
    step = kernels.make_step(case["first_token"], case["positions"], case["page_table"])
    cache = kernels.make_kv_cache(1, num_pages, kv_heads, d, limbs)
    codes, scales = np.full_like(case["out.query_codes"], 99), np.zeros_like(case["out.query_scales"])
    assert kernels.write_qkv(step, case["qkv"], heads, case["cosine"], case["sine"], cache, 0, codes, scales)
    assert same(codes, case["out.query_codes"])
    assert same(scales, case["out.query_scales"])
    out = np.full_like(case["out.attended"], np.nan)
    scale = float(case["softmax_scale"][0])
    assert kernels.attend(step, codes, scales, heads, cache, 0, scale, window, out)
    assert same(out, case["out.attended"])
    for sequence, (begin, end) in enumerate(zip(case["first_token"], case["first_token"][1:], strict=False)):
        for t in range(begin, end):
            position = int(case["positions"][t])
            at = int(case["page_table"][sequence, position // 32]), position % 32
            keys, values = np.zeros((kv_heads, d), np.int16), np.zeros((kv_heads, d), np.int16)
            key_scales, value_scales = np.zeros(kv_heads, np.float32), np.zeros(kv_heads, np.float32)
            kernels.read_kv(cache, 0, *at, keys, key_scales, values, value_scales)
            assert same(keys, case["out.keys"][at])
            assert same(values, case["out.values"][at])
            assert same(key_scales, case["out.key_scales"][at])
            assert same(value_scales, case["out.value_scales"][at])


@pytest.mark.parametrize("case", read_vectors("logprob"))
def test_argmax_and_log_probabilities(kernels: Kernels, case: Case) -> None:
    best = np.zeros(len(case["logits"]), np.int64)
    kernels.argmax(case["logits"], len(best), case["logits"].shape[1], best)
    assert same(best, case["out.best"])
    values = np.zeros_like(case["out.logprobs"])
    assert kernels.log_probabilities(case["logits"], len(best), values.shape[1], values)
    assert same(values, case["out.logprobs"])


@pytest.mark.parametrize("case", read_vectors("adjust"))
def test_adjust(kernels: Kernels, case: Case) -> None:
    x = case["x"].copy()
    lists = case["bias_ids"], case["bias"], case["history_ids"], case["counts"]
    assert kernels.adjust(x, len(x), *lists, *case["penalties"].tolist())
    assert same(x, case["out.x"])


@pytest.mark.parametrize("case", read_vectors("sampling"))
def test_sample(kernels: Kernels, case: Case) -> None:
    chosen = np.full_like(case["out.chosen"], -7)
    parameters = [case[name] for name in ("temperature", "min_weight", "top_k", "top_p_q40", "u")]
    kernels.sample(case["x"], *case["x"].shape, *parameters, chosen)
    assert same(chosen, case["out.chosen"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_reported(kernels: Kernels, value: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 40] = value
    codes, scales, best = np.zeros((2, 64), np.int16), np.zeros(2, np.float32), np.zeros(2, np.int64)
    assert not kernels.quantise(x, 2, 64, codes, scales)
    assert not kernels.norm_quantise(x.copy(), None, None, 2, np.ones(64, np.float32), 1e-5, codes, scales)
    assert not kernels.swiglu_quantise(x, 2, 32, codes, scales)
    kernels.argmax(x, 2, 64, best)
    assert best.tolist() == [0, -1]
    assert not kernels.log_probabilities(x, 2, 64, np.zeros((2, 64)))
