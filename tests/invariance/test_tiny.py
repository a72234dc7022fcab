"""The promise on tiny random models of every variant and every instruction set, the NumPy reference included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exactlm import convert_to_deterministic
from exactlm.kernels.select import available_isas
from tests import tiny

from .control import FloatKernels
from .harness import Setting, check_alive, make_engine, run

VARIANTS = ["base", "bias", "dynamic", "yarn", "window", "tied"]
LENGTHS = (1, 2, 17, 31, 32, 33, 63, 70)
SETTINGS = [
    Setting(threads=1, chunk_tokens=1),
    Setting(threads=2, chunk_tokens=7, neighbours=2, order=1),
    Setting(threads=5, chunk_tokens=64, neighbours=7, order=2),
    Setting(threads=3, chunk_tokens=3, neighbours=11, order=3),
]


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.Generator(np.random.Philox(key=11))
    return [rng.integers(0, 400, n).tolist() for n in lengths]


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory):
    made: dict[tuple[str, str, str], Path] = {}

    def make(variant: str, precision: str, kv_cache: str = "int16") -> Path:
        key = (variant, precision, kv_cache)
        if key not in made:
            folder = tmp_path_factory.mktemp("tiny")
            source = tiny.write_checkpoint(folder / "source", variant)
            made[key] = convert_to_deterministic(source, precision, kv_cache=kv_cache).save_pretrained(
                folder / "model", progress=False
            )
        return made[key]

    return make


@pytest.mark.parametrize("kv_cache", ["int16", "int8"])
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_digest_for_every_setting_and_instruction_set(convert, variant: str, precision: str, kv_cache: str) -> None:
    path = convert(variant, precision, kv_cache)
    alone = Setting(isa="scalar")
    engine = make_engine(path, alone)
    expected = run(engine, prompts(), alone)
    check_alive(engine, prompts(), expected)
    for isa in available_isas():
        if isa == "reference":
            continue
        for s in SETTINGS:
            setting = Setting(isa, s.threads, s.chunk_tokens, s.neighbours, s.order)
            assert run(make_engine(path, setting), prompts(), setting) == expected, setting
    short = prompts((1, 17, 33))
    few = run(make_engine(path, alone), short, alone)
    setting = Setting("reference", chunk_tokens=7, neighbours=2, order=5)
    assert run(make_engine(path, setting), short, setting) == few


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_float_engine_fails_under_this_harness(convert, precision: str) -> None:
    path = convert("base", precision)
    found = set()
    for setting in (
        Setting("reference", chunk_tokens=1),
        Setting("reference", chunk_tokens=64),
        Setting("reference", neighbours=7),
    ):
        engine = make_engine(path, setting, lambda _: FloatKernels())
        found.add(tuple(run(engine, prompts(), setting)))
    assert len(found) > 1


def test_a_flipped_bit_of_the_cache_changes_the_digest(convert) -> None:
    path = convert("base", "fp16")
    setting = Setting("reference")
    engine = make_engine(path, setting)
    expected = run(engine, prompts(), setting)
    original = engine.decoder.kernels.write_qkv

    def disturbed(*arguments):
        result = original(*arguments)
        cache, layer = arguments[5], arguments[6]
        cache.values[layer, :, 3, 0, 0] ^= 1
        return result

    engine.decoder.kernels.write_qkv = disturbed
    assert run(engine, prompts(), setting) != expected
