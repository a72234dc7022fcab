"""The promise on the real model, with real prompts: a covering array of settings, one digest per prompt.

The short version runs in `make test`, the sweep in `make check-all`:
    python -m pytest -m slow tests/invariance/test_smollm2.py -s
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from exactlm.kernels.select import REFERENCE, available_isas
from exactlm.text.tokenizer import Tokenizer
from tests.conftest import data_file

from .harness import Setting, check_alive, covering_array, make_engine, run

NEIGHBOURS = (0, 2, 7, 64)
CHUNKS = (1, 7, 64, 512, 4096)  # the last takes every prompt whole
THREADS = (1, 2, 3, 5, 8)
FAST = tuple(isa for isa in available_isas() if isa not in (REFERENCE, "scalar")) or ("scalar",)
# 1 to 700 tokens, around the boundaries of pages (32) and of chunks.
LENGTHS = (1, 2, 3, 5, 8, 13, 17, 31, 32, 33, 47, 63, 64, 65, 81, 96, 97, 127, 128, 129, 160, 200, 255, 256, 257)
LENGTHS += (300, 350, 400, 511, 512, 600, 700)
pytestmark = pytest.mark.model


def load_prompts(tokenizer: Tokenizer, lengths: list[int]) -> list[list[int]]:
    """Beginnings of BoolQ passages and contracts, in turns, of the given numbers of tokens."""
    with data_file("boolq_val.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for _, line in zip(range(3 * len(lengths)), file, strict=False)]
    passages = [tokenizer.encode(f"{r['passage']}\nQuestion: {r['question']}?\nAnswer:") for r in rows]
    passages.sort(key=len, reverse=True)
    contracts = [tokenizer.encode(p.read_text(encoding="utf-8")) for p in sorted(data_file("contracts").glob("*.txt"))]
    found = []
    for i, length in enumerate(lengths):
        kinds = (passages, contracts) if i % 2 == 0 else (contracts, passages)
        long_enough = [ids for kind in kinds for ids in kind if len(ids) >= length]
        found.append(long_enough[i // 2 % len(long_enough)][:length])
    return found


def settings() -> list[Setting]:
    """Rows in which every pair of neighbours, chunk, threads and instruction set occurs."""
    rows = covering_array([NEIGHBOURS, CHUNKS, THREADS, FAST])
    return [
        Setting(isa, threads, chunk, neighbours, order) for order, (neighbours, chunk, threads, isa) in enumerate(rows)
    ]


def test_every_pair_of_settings_occurs() -> None:
    rows = settings()
    for a in NEIGHBOURS:
        for b in CHUNKS:
            assert any(r.neighbours == a and r.chunk_tokens == b for r in rows)
    for threads in THREADS:
        for isa in FAST:
            assert any(r.threads == threads and r.isa == isa for r in rows)


def test_short_prompts_under_a_few_settings(model_path: Path) -> None:
    prompts = load_prompts(Tokenizer.load(model_path), [1, 2, 31, 32, 33, 5, 64, 100])
    base = Setting(FAST[-1], 2)
    engine = make_engine(model_path, base)
    expected = run(engine, prompts, base)
    check_alive(engine, prompts, expected)
    del engine
    for setting in (Setting(FAST[-1], 1, 7, 7, 1), Setting(FAST[0], 3, 64, 2, 2), Setting(FAST[-1], 2, 1, 15, 3)):
        assert run(make_engine(model_path, setting), prompts, setting) == expected, setting
    scalar = Setting("scalar", 2)
    assert run(make_engine(model_path, scalar), prompts[:3], scalar) == expected[:3]
    reference = Setting(REFERENCE)
    assert run(make_engine(model_path, reference), prompts[:2], reference) == expected[:2]


@pytest.mark.slow
def test_sweep(model_path: Path) -> None:
    prompts = load_prompts(Tokenizer.load(model_path), list(LENGTHS))
    base = Setting(FAST[-1], 2)
    engine = make_engine(model_path, base)
    expected = run(engine, prompts, base)
    check_alive(engine, prompts, expected)
    del engine
    rows = settings()
    for i, setting in enumerate(rows):
        begin = time.monotonic()
        assert run(make_engine(model_path, setting), prompts, setting) == expected, setting
        print(
            f"{model_path.name} {i + 1}/{len(rows)} {setting}: identical, {time.monotonic() - begin:.0f} s", flush=True
        )
