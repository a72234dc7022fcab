"""The real model against transformers in float32, from the same GGUF file: divergence on real text, and perplexity."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from exactlm import LLM
from tests.conftest import ROOT, data_file, model_directory
from tests.fidelity.divergence import measure, perplexity
from tests.fidelity.reference import Oracle

SOURCE = ROOT / ".cache" / "source" / "SmolLM2-135M-Instruct.Q4_1.gguf"
WINDOW, NUM_WINDOWS = 256, 8  # of each of two texts: 4,096 tokens
LIMITS = {"fp16": 5e-6, "int8": 1.6e-3}
TOP1 = {"fp16": 0.998, "int8": 0.96}
PERPLEXITY = 28.813  # of transformers in float32 on the first 386 tokens; wrong pairs in RoPE give about 280

pytestmark = pytest.mark.model


@pytest.fixture(params=LIMITS)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def llm(precision: str) -> LLM:
    return LLM(model_directory(precision))


def source() -> Path:
    if not SOURCE.is_file():
        pytest.skip(f"no {SOURCE.relative_to(ROOT)} (run `make models`)")
    return SOURCE


def read_wiki() -> str:
    return data_file("wiki.test.raw").read_text(encoding="utf-8")


def read_passages() -> str:
    rows = data_file("boolq_val.jsonl").read_text(encoding="utf-8").splitlines()
    return "\n\n".join(json.loads(row)["passage"] for row in rows[:200])


def windows(llm: LLM, text: str) -> NDArray[np.int64]:
    """NUM_WINDOWS stretches of WINDOW tokens, evenly spaced over the text."""
    ids = np.array(llm.tokenizer.encode(text), np.int64)
    starts = np.linspace(0, len(ids) - WINDOW, NUM_WINDOWS).astype(int)
    return np.stack([ids[at : at + WINDOW] for at in starts])


def test_divergence(precision: str, llm: LLM, oracle: Oracle, record: Callable[[str], None]) -> None:
    file = source()
    ids = np.concatenate([windows(llm, read_wiki()), windows(llm, read_passages())])
    expected = oracle.logits(file.parent, ids, gguf_file=file.name)
    found = measure((row, llm.logits(tokens.tolist())) for row, tokens in zip(expected, ids, strict=True))
    record(f"SmolLM2-135M {precision} {found}")
    assert found.num_tokens == 2 * NUM_WINDOWS * WINDOW
    assert found.mean_kl <= LIMITS[precision]
    assert found.top1 >= TOP1[precision]


def test_oracle_is_right(oracle: Oracle, record: Callable[[str], None]) -> None:
    """The harness against itself: ids, file and oracle give the known perplexity without our arithmetic."""
    file = source()
    ids = np.array(LLM(model_directory("fp16")).tokenizer.encode(read_wiki())[:386], np.int64)
    found = perplexity(oracle.logits(file.parent, ids[None], gguf_file=file.name)[0], ids)
    record(f"SmolLM2-135M transformers float32 perplexity {found:.4f} on the first 386 tokens of wiki.test.raw")
    assert abs(found - PERPLEXITY) <= 0.001


def test_perplexity(precision: str, llm: LLM, record: Callable[[str], None]) -> None:
    ids = llm.tokenizer.encode(read_wiki())[:386]
    found = perplexity(llm.logits(ids), np.array(ids, np.int64))
    record(f"SmolLM2-135M {precision} perplexity {found:.4f} on the first 386 tokens of wiki.test.raw")
    assert abs(found - PERPLEXITY) <= {"fp16": 0.02, "int8": 0.3}[precision]
