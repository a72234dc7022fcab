"""Every variant of the tiny checkpoint against transformers, also beyond the original window of the RoPE-scaled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from exactlm import LLM, convert_to_deterministic
from tests.fidelity.divergence import measure
from tests.fidelity.reference import Oracle
from tests.tiny import NUM_TOKENS, VARIANTS, write_checkpoint

LIMITS = {"fp16": 1e-6, "int8": 1.6e-3}
IDS = (np.random.Philox(key=200).random_raw(200) % NUM_TOKENS).astype(np.int64)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_matches(variant: str, oracle: Oracle, record: Callable[[str], None], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", variant)
    expected = oracle.logits(checkpoint, IDS[None], decode=variant == "dynamic")[0]
    assert np.isfinite(expected).all()
    for precision, limit in LIMITS.items():
        model = convert_to_deterministic(checkpoint, precision=precision).save_pretrained(tmp_path / precision)
        found = measure([(expected, LLM(model, threads=1).logits(IDS.tolist()))])
        record(f"tiny {variant:9} {precision} {found}")
        assert found.num_tokens == len(IDS)
        assert found.mean_kl <= limit


@pytest.mark.parametrize("variant", ["linear", "dynamic", "llama3", "yarn", "window"])
def test_variant_matters(variant: str, oracle: Oracle, tmp_path: Path) -> None:
    """The control: leaving out what the variant adds would be seen, at 100 times the limit and more."""
    base = oracle.logits(write_checkpoint(tmp_path / "base"), IDS[None])[0]
    other = oracle.logits(write_checkpoint(tmp_path / variant, variant), IDS[None], decode=variant == "dynamic")[0]
    assert measure([(base, other)]).mean_kl >= 100 * LIMITS["fp16"]
