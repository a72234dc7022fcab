"""GGUF files of the gguf package's writer, Q/K rows permuted as llama.cpp does, give the tensors and configuration of Hugging Face."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from exactlm.convert.checkpoint import open_checkpoint
from exactlm.errors import ConfigError, UnsupportedError
from tests import tiny
from tests.compat.gguf_file import permute, write_gguf


@pytest.mark.parametrize("variant", ["base", "bias", "tied", "heads63"])
def test_tensors_and_configuration_equal_those_of_hugging_face(variant: str, tmp_path: Path) -> None:
    expected = write_gguf(tmp_path / "a.gguf", variant)
    found = open_checkpoint(tmp_path / "a.gguf")
    theirs = open_checkpoint(tiny.write_checkpoint(tmp_path / "hf", variant))

    assert found.tensors.keys() == expected.keys() == theirs.tensors.keys()
    for name, values in expected.items():
        assert found.tensors[name].read().tobytes() == values.tobytes() == theirs.tensors[name].read().tobytes(), name
    assert found.config.num_tokens == tiny.NUM_TOKENS
    assert replace(found.config, num_tokens=theirs.config.num_tokens) == theirs.config


@pytest.mark.parametrize(("variant", "heads"), [("base", (8, 2)), ("heads63", (6, 3))])
def test_rows_that_were_not_permuted_come_out_different(variant: str, heads: tuple[int, int], tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "a.gguf", variant, permuted=False)
    found = open_checkpoint(tmp_path / "a.gguf")
    for part, count, other in zip(("q_proj", "k_proj"), heads, heads[::-1], strict=True):
        name = f"model.layers.0.self_attn.{part}.weight"
        assert not np.array_equal(found.tensors[name].read(), original[name])
        assert np.array_equal(permute(found.tensors[name].read(), count), original[name])
        assert not np.array_equal(permute(found.tensors[name].read(), other), original[name])  # the wrong head count


@pytest.mark.parametrize("variant", ["base", "heads63"])
def test_codes_of_q8_0_are_those_of_the_rows_in_hugging_face_order(variant: str, tmp_path: Path) -> None:
    original = write_gguf(tmp_path / "a.gguf", variant, GGMLQuantizationType.Q8_0)
    found = open_checkpoint(tmp_path / "a.gguf")
    kept = {name: tensor.read_q8_0() for name, tensor in found.tensors.items() if tensor.dtype == "Q8_0"}
    assert {f"model.layers.1.self_attn.{p}_proj.weight" for p in "qkvo"} < kept.keys()
    for name, pair in kept.items():
        assert pair is not None
        codes, scales = pair
        blocks = quantize(
            original[name], GGMLQuantizationType.Q8_0
        )  # of each row alone, so rows keep theirs when moved
        raw = blocks.reshape(len(blocks), -1, 34)
        assert scales.tobytes() == np.ascontiguousarray(raw[:, :, :2]).tobytes(), name
        assert codes.tobytes() == np.ascontiguousarray(raw[:, :, 2:]).tobytes(), name
        assert found.tensors[name].read().tobytes() == dequantize(blocks, GGMLQuantizationType.Q8_0).tobytes(), name
    assert all(t.read_q8_0() is None for t in found.tensors.values() if t.dtype != "Q8_0")


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, ("linear", 2.0, None)),
        ({"rope.scaling.factor": 2.0}, ("linear", 2.0, None)),  # llama.cpp takes an absent type for linear
        ({"rope.scale_linear": 2.0}, ("linear", 2.0, None)),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
            ("yarn", 4.0, 64),
        ),
    ],
)
def test_rope_scaling_is_read(keys: dict[str, object], wanted: tuple[str, float, int | None], tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", more=keys)
    scaling = open_checkpoint(tmp_path / "a.gguf").config.rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor, scaling.original_max_position_embeddings) == wanted


def test_an_absent_rope_base_is_what_the_gguf_specification_says(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", more={"rope.freq_base": None})
    assert open_checkpoint(tmp_path / "a.gguf").config.rope_theta == 10000.0


@pytest.mark.parametrize(
    ("keys", "error", "named"),
    [
        ({"attention.layer_norm_rms_epsilon": None}, ConfigError, "llama.attention.layer_norm_rms_epsilon"),
        ({"context_length": None}, ConfigError, "llama.context_length"),
        ({"rope.freq_base": 0.0}, ConfigError, "rope_theta"),
        ({"surprise": 1}, ConfigError, "llama.surprise"),
        ({"attention.head_count": "8"}, ConfigError, "llama.attention.head_count"),
        ({"attention.head_count_kv": 3}, ConfigError, "num_kv_heads"),
        ({"rope.dimension_count": 8}, UnsupportedError, "llama.rope.dimension_count"),
        ({"attention.value_length": 8}, UnsupportedError, "llama.attention.value_length"),
        ({"vocab_size": 516}, UnsupportedError, "llama.vocab_size"),
        ({"expert_count": 8}, UnsupportedError, "llama.expert_count"),
        ({"rope.scaling.type": "longrope"}, UnsupportedError, "longrope"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, ConfigError, "original_context_length"),
        ({"rope.scaling.attn_factor": 1.5}, UnsupportedError, "llama.rope.scaling.attn_factor"),
    ],
)
def test_metadata_is_refused_by_name(
    keys: dict[str, object], error: type[Exception], named: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "a.gguf", more=keys)
    with pytest.raises(error, match=named.replace(".", r"\.")) as caught:
        open_checkpoint(tmp_path / "a.gguf")
    assert "a.gguf" in str(caught.value)
