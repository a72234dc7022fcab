"""The same weights in a GGUF file and in a Hugging Face directory become the same model, byte for byte."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from exactlm import convert_to_deterministic
from exactlm.convert.checkpoint import open_checkpoint
from exactlm.format.reader import open_model
from exactlm.models.rope_scaling import RopeScaling
from tests.conftest import ROOT
from tests.tiny import write_checkpoint
from tests.unit.convert.gguf_file import write_gguf

REAL = ROOT / ".cache" / "source" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(source: Path, target: Path, precision: str = "fp16") -> Path:
    return convert_to_deterministic(source, precision=precision).save_pretrained(target)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("variant", ["base", "heads63", "bias", "tied"])
def test_same_weights_give_the_same_bytes(variant: str, precision: str, tmp_path: Path) -> None:
    ours = convert(write_gguf(tmp_path / "m.gguf", variant), tmp_path / "gguf", precision)
    theirs = convert(write_checkpoint(tmp_path / "hf", variant), tmp_path / "out", precision)
    for name in ("model.safetensors", "config.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert open_model(ours).model_digest == open_model(theirs).model_digest


@pytest.mark.parametrize("part", ["attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"])
def test_a_wrong_permutation_would_be_seen(part: str, tmp_path: Path) -> None:
    """The control of the test above: rows left in their order, in one tensor only, change the model."""

    from tests.tiny import make_config, make_tensors
    from tests.unit.convert.gguf_file import gguf_name, gguf_tensors

    config = make_config("bias")
    plain = {gguf_name(name): values for name, values in make_tensors(config, "bias")}
    name = f"blk.1.{part}"
    tensors = {**gguf_tensors(config, "bias"), name: plain[name]}
    ours = convert(write_gguf(tmp_path / "m.gguf", "bias", tensors=tensors), tmp_path / "gguf")
    theirs = convert(write_checkpoint(tmp_path / "hf", "bias"), tmp_path / "out")
    assert (ours / "model.safetensors").read_bytes() != (theirs / "model.safetensors").read_bytes()


def test_float16_files_agree(tmp_path: Path) -> None:
    ours = convert(write_gguf(tmp_path / "m.gguf", kind="F16"), tmp_path / "gguf")
    theirs = convert(write_checkpoint(tmp_path / "hf", dtype="float16"), tmp_path / "out")
    a, b = open_model(ours).tensors, open_model(theirs).tensors
    matrices = [name for name in a if name.endswith(".codes")]
    assert len(matrices) == 10
    for name in matrices:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_versions_2_and_3_are_the_same(tmp_path: Path) -> None:
    three = write_gguf(tmp_path / "m.gguf")
    raw = bytearray(three.read_bytes())
    assert raw[4:8] == b"\x03\0\0\0"
    raw[4] = 2
    (tmp_path / "two").mkdir()
    two = tmp_path / "two" / "m.gguf"
    two.write_bytes(raw)
    a, b = convert(three, tmp_path / "a"), convert(two, tmp_path / "b")
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    assert (a / "config.json").read_bytes() == (b / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"llama.rope.scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}, RopeScaling("linear", 2.5)),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 8.0,
                "llama.rope.scaling.original_context_length": 64,
                "llama.rope.scaling.attn_factor": 1.0,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            RopeScaling("yarn", 8.0, original_max_position_embeddings=64, beta_fast=16.0),
        ),
    ],
)
def test_rope_scaling_of_gguf(keys: dict[str, object], expected: RopeScaling | None, tmp_path: Path) -> None:
    assert open_checkpoint(write_gguf(tmp_path / "m.gguf", keys=keys)).config.rope_scaling == expected


def test_rope_factors_of_gguf(tmp_path: Path) -> None:
    factors = np.array([1, 1, 1, 2.5, 4, 8, 8, 8], np.float32)
    path = write_gguf(tmp_path / "m.gguf", change=lambda w: w.add_tensor("rope_freqs.weight", factors))
    base = open_checkpoint(write_gguf(tmp_path / "base.gguf")).config
    scaling = RopeScaling("divisors", 1.0, divisors=tuple(factors.tolist()))
    assert open_checkpoint(path).config == dataclasses.replace(base, rope_scaling=scaling)
    ones = write_gguf(tmp_path / "o.gguf", change=lambda w: w.add_tensor("rope_freqs.weight", np.ones(8, np.float32)))
    assert open_checkpoint(ones).config == base


@pytest.mark.model
@pytest.mark.skipif(not REAL.is_file(), reason=f"no {REAL.name} in .cache/source (run `make models`)")
def test_real_file_opens_as_what_it_is(tmp_path: Path) -> None:
    config = open_checkpoint(REAL).config
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads, config.intermediate_size)
    assert sizes == (30, 576, 9, 3, 1536)
    assert (config.rope_theta, config.rms_norm_eps, config.tie_word_embeddings) == (100000.0, 1e-05, True)
    report = convert_to_deterministic(REAL, attention_window=64)
    target = report.save_pretrained(tmp_path / "out")
    assert all(is_sound for _, is_sound in open_model(target).verify())
    # 4-bit blocks in 16-bit rows: far below what the source itself lost.
    errors = [t["relative_error"] for t in report.report["tensors"].values() if t["stored"] == "fp16"]
    assert len(errors) == 121
    assert max(errors) < 1e-4
