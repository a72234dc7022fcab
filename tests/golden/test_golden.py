"""Pinned digests: a change of any bit of conversion or inference fails here.

Such a change needs a new spec version and a CHANGELOG line.

python -m tests.golden.test_golden      rewrites golden.json (only together with a new spec version)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from exactlm import LLM, SamplingParams, convert_to_deterministic
from exactlm.format.digest import sha256_array
from exactlm.format.reader import open_model
from exactlm.kernels.select import available_isas
from exactlm.numerics import SPEC_VERSION
from tests import tiny
from tests.conftest import model_directory

FILE = Path(__file__).parent / "golden.json"
VARIANTS = sorted(tiny.VARIANTS)
KINDS = [("fp16", "int16"), ("int8", "int16"), ("fp16", "int8")]
DRAWN = SamplingParams(
    n=2, max_tokens=8, temperature=1.3, top_k=300, top_p=0.95, min_p=1e-4, seed=2**40 + 7, ignore_eos=True,
    repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=-0.1, logit_bias={3: 1.5},
)  # fmt: skip
REAL_PROMPTS = ["The capital of France is", "def is_prime(n):", "Ünïcödé 🙂 and\n\ttabs"]
Digests = dict[str, str]


def prompt(count: int) -> list[int]:
    rng = np.random.Generator(np.random.Philox(key=count))
    return rng.integers(0, 400, count).tolist()


def tiny_digests(folder: Path, variant: str, isa: str | None = None) -> Digests:
    """Model digest, logits of 40 and 70 tokens, and generation, for one variant in every kind of codes."""
    source = tiny.write_checkpoint(folder / "source", variant)
    found = {}
    for precision, kv_cache in KINDS:
        path = folder / f"{precision}-{kv_cache}"
        convert_to_deterministic(source, precision, kv_cache=kv_cache).save_pretrained(path, progress=False)
        llm = LLM(path, isa=isa, threads=2)
        name = f"{variant} {precision} {kv_cache}"
        found[f"{name} model"] = open_model(path).model_digest
        found[f"{name} logits 70"] = sha256_array(llm.logits(prompt(70)))
        output = llm.generate([prompt(33)], SamplingParams(max_tokens=8, ignore_eos=True))[0].outputs[0]
        found[f"{name} output"] = output.digest
        found[f"{name} ids"] = " ".join(map(str, output.token_ids))
        drawn = llm.generate([prompt(33)], DRAWN)[0].outputs[1]
        found[f"{name} drawn"] = " ".join(map(str, drawn.token_ids)) + " " + drawn.digest
    return found


def real_digests(path: Path, precision: str, isa: str | None = None) -> Digests:
    """Fingerprint, logits and generation of the real model."""
    llm = LLM(path, isa=isa, threads=2)
    found = {f"smollm2 {precision} fingerprint": llm.fingerprint}
    for i, text in enumerate(REAL_PROMPTS):
        output = llm.generate(text, SamplingParams(max_tokens=8, ignore_eos=True))[0]
        found[f"smollm2 {precision} prompt {i} output"] = output.outputs[0].digest
        found[f"smollm2 {precision} prompt {i} logits"] = sha256_array(llm.logits(output.prompt_token_ids))
    return found


def golden() -> Digests:
    pinned = json.loads(FILE.read_text(encoding="utf-8"))
    assert pinned["spec_version"] == SPEC_VERSION, "a new spec version needs new golden digests"
    return dict(pinned["digests"])


def agree(found: Digests) -> None:
    pinned = golden()
    assert {name: pinned[name] for name in found} == found


@pytest.mark.parametrize("isa", [isa for isa in available_isas() if isa != "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny(tmp_path: Path, variant: str, isa: str) -> None:
    agree(tiny_digests(tmp_path, variant, isa))


def test_tiny_by_the_reference(tmp_path: Path) -> None:
    agree(tiny_digests(tmp_path, "base", "reference"))


@pytest.mark.model
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_real_model(precision: str) -> None:
    path = model_directory(precision)
    for isa in available_isas():
        if isa not in ("reference", "scalar"):
            agree(real_digests(path, precision, isa))


def test_nothing_pinned_is_left_unchecked() -> None:
    checked = len(VARIANTS) * len(KINDS) * 5 + 2 * (1 + 2 * len(REAL_PROMPTS))
    assert len(golden()) == checked


if __name__ == "__main__":
    digests: Digests = {}
    for each in VARIANTS:
        with tempfile.TemporaryDirectory() as name:
            digests |= tiny_digests(Path(name), each)
    for each in ("fp16", "int8"):
        digests |= real_digests(model_directory(each), each)
    FILE.write_text(json.dumps({"spec_version": SPEC_VERSION, "digests": digests}, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{len(digests)} digests\n")
