"""A tiny model, and receipts of its answers of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from exactlm.receipt import Receipt
from tests import tiny

PARAMS = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=20, temperature=1.2, seed=2**64 - 1, top_p=0.9, top_k=40, min_p=0.001, ignore_eos=True),
    SamplingParams(max_tokens=15, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.1, stop=["zq"]),
    SamplingParams(max_tokens=9, temperature=0.7, seed=3, logit_bias={5: 2.5, 7: -100.0}, stop_token_ids=[8]),
    SamplingParams(max_tokens=30, regex="[a-f]{3,12}"),
    SamplingParams(max_tokens=0),
]


@pytest.fixture(scope="session")
def proof_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proof")
    return convert_to_deterministic(tiny.write_checkpoint(folder / "source")).save_pretrained(
        folder / "model", progress=False
    )


@pytest.fixture(scope="session")
def llm(proof_model: Path) -> LLM:
    return LLM(proof_model, threads=2)


@pytest.fixture(scope="session")
def receipts(llm: LLM) -> list[Receipt]:
    prompts = ["the thing in the hand", *[[5, 6, 7 + i] * 15 for i in range(len(PARAMS) - 1)]]
    made = [o.receipt for r in llm.generate(prompts, PARAMS, receipt=True) for o in r.outputs]
    made += [o.receipt for o in llm.generate([[9, 8, 7]], SamplingParams(n=2, temperature=1, seed=5), True)[0].outputs]
    made += [o.receipt for o in llm.chat([{"role": "user", "content": "hi"}], PARAMS[0], receipt=True)[0].outputs]
    return [r for r in made if r is not None]
