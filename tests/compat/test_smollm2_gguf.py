"""The real model's GGUF file, a mixture of Q4_1, Q8_0 and F32: sizes, names, values, and what a cut of it is called."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from exactlm.convert.checkpoint import open_checkpoint
from exactlm.convert.source import Checkpoint, expected_shapes
from exactlm.errors import CheckpointError
from exactlm.models.config import ModelConfig

FILE = Path(__file__).parent.parent.parent / ".cache" / "source" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def smollm2() -> Checkpoint:
    if not FILE.is_file():
        pytest.skip(f"no .cache/source/{FILE.name} (run `make models`)")
    return open_checkpoint(FILE)


def test_configuration(smollm2: Checkpoint) -> None:
    assert smollm2.config == ModelConfig(
        model_type="llama",
        vocab_size=49152,
        num_tokens=49152,
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1536,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        rope_scaling=None,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
        attention_window=None,
    )


def test_all_272_tensors_have_a_place_and_finite_values(smollm2: Checkpoint) -> None:
    shapes = {name: tensor.shape for name, tensor in smollm2.tensors.items()}
    assert shapes == expected_shapes(smollm2.config)
    assert Counter(t.dtype for t in smollm2.tensors.values()) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    for layer in (0, 29):
        for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
            values = smollm2.tensors[f"model.layers.{layer}.{part}.weight"].read()
            assert np.isfinite(values).all()
            assert 0.01 < values.std() < 1


@pytest.mark.parametrize("removed", [1, 4096, 49_181_216])
def test_a_cut_file_is_named_with_both_sizes(removed: int, smollm2: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    left = FILE.stat().st_size - removed
    with FILE.open("rb") as source, path.open("wb") as target:
        target.write(source.read(left))
    with pytest.raises(
        CheckpointError, match=rf"cut\.gguf: tensor .* ends at byte \d+, the file has {left}: it was cut"
    ):
        open_checkpoint(path)
