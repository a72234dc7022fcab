"""Hugging Face directories: single and sharded, tied and untied, and every way in which they can be incomplete."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from exactlm import convert_to_deterministic
from exactlm.convert.checkpoint import open_checkpoint
from exactlm.errors import CheckpointError, ConfigError, ExactlmError, UnsupportedError
from exactlm.format.json_object import JSON_LIMIT
from tests.tiny import write_checkpoint
from tests.unit.convert.limit import open_in_limits

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_tensors(path: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)


def convert(source: Path, target: Path) -> Path:
    return convert_to_deterministic(source).save_pretrained(target)


def test_sharded_is_the_same_model(tmp_path: Path) -> None:
    one = convert(write_checkpoint(tmp_path / "one"), tmp_path / "a")
    two = convert(write_checkpoint(tmp_path / "two", sharded=True), tmp_path / "b")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "text.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_of_every_type_are_exact(dtype: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf", dtype=dtype)
    raw = (path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    data = raw[8 + int.from_bytes(raw[:8], "little") :]
    for name, tensor in open_checkpoint(path).tensors.items():
        begin, end = header[name]["data_offsets"]
        if dtype == "bfloat16":
            bits = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            expected = bits.view(np.float32)
        else:
            expected = np.frombuffer(data[begin:end], {"float32": "<f4", "float16": "<f2"}[dtype]).astype(np.float32)
        np.testing.assert_array_equal(tensor.read().view(np.uint32), expected.reshape(tensor.shape).view(np.uint32))


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("stored", ["absent", "equal", "different"])
def test_tied_flag_times_stored_head(flag: bool | None, stored: str, sharded: bool, tmp_path: Path) -> None:
    """A head that is stored or not, tied or not: a match or a named error, never a silent choice."""
    path = write_checkpoint(tmp_path / "hf", sharded=sharded)
    holder = json.loads((path / INDEX).read_text())["weight_map"][HEAD] if sharded else "model.safetensors"
    embedding = next(a[EMBEDDING] for a in map(load_file, sorted(path.glob("*.safetensors"))) if EMBEDDING in a)
    if stored == "absent":
        edit_tensors(path / holder, lambda a: a.pop(HEAD))
        if sharded:
            edit_json(path / INDEX, lambda v: v["weight_map"].pop(HEAD))
    elif stored == "equal":
        edit_tensors(path / holder, lambda a: a.update({HEAD: embedding.copy()}))
    edit_json(path / "config.json", lambda v: v.pop("tie_word_embeddings"))
    if flag is not None:
        edit_json(path / "config.json", lambda v: v.update(tie_word_embeddings=flag))
    if flag is not True and stored == "absent":
        with pytest.raises(CheckpointError, match=r"lm_head\.weight' is missing, though tie_word_embeddings is"):
            open_checkpoint(path)
    elif flag is True and stored == "different":
        with pytest.raises(CheckpointError, match=r"'lm_head\.weight' differs from 'model\.embed_tokens\.weight'"):
            open_checkpoint(path)
    else:
        assert open_checkpoint(path).config.tie_word_embeddings is (flag is True)


def drop(path: Path, name: str) -> None:
    (path / name).unlink()


def double(path: Path) -> None:
    shared = load_file(path / SECOND)
    edit_tensors(path / FIRST, lambda a: a.update(dict([next(iter(shared.items()))])))


SHARDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "shard missing": (lambda p: drop(p, SECOND), f"shard '{SECOND}' is missing"),
    "no index": (lambda p: drop(p, INDEX), f"but no {INDEX}"),
    "stray file": (lambda p: save_file({"x": np.zeros(1)}, p / "consolidated.safetensors"), "is not listed"),
    "stray name": (lambda p: (p / FIRST).rename(p / "model.safetensors"), f"shard '{FIRST}' is missing"),
    "tensor in two shards": (double, "is in both"),
    "swapped shards": (
        lambda p: (
            (p / FIRST).rename(p / "t"),
            (p / SECOND).rename(p / FIRST),
            (p / "t").rename(p / SECOND),
        ),
        "the index is stale",
    ),
    "index lists too much": (
        lambda p: edit_json(p / INDEX, lambda v: v["weight_map"].update(x=FIRST)),
        "'x' is in .*, it is in no file",
    ),
    "index lists too little": (lambda p: edit_json(p / INDEX, lambda v: v["weight_map"].pop(HEAD)), "not listed"),
    "index outside": (lambda p: edit_json(p / INDEX, lambda v: v["weight_map"].update(x="../x")), "'../x' is missing"),
    "map of numbers": (lambda p: edit_json(p / INDEX, lambda v: v.update(weight_map={"a": 1})), "weight_map must map"),
    "no map": (lambda p: edit_json(p / INDEX, lambda v: v.pop("weight_map")), "weight_map must map"),
    "index not JSON": (lambda p: (p / INDEX).write_text("{"), "cannot be read as JSON"),
    "index list": (lambda p: (p / INDEX).write_text("[]"), "holds a list"),
    "shard cut": (lambda p: (p / FIRST).write_bytes((p / FIRST).read_bytes()[:-1]), "it was cut or grew"),
    "pickle": (
        lambda p: ((p / FIRST).unlink(), (p / SECOND).unlink(), (p / "pytorch_model.bin").touch()),
        "a pickle, which is never loaded",
    ),
}


@pytest.mark.parametrize("name", SHARDS)
def test_incomplete_shards_are_refused_by_name(name: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf", sharded=True)
    assert open_checkpoint(path).config.num_layers == 2
    change, message = SHARDS[name]
    change(path)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


Arrays = dict[str, np.ndarray]
Q0 = "model.layers.0.self_attn.q_proj"
TENSORS: dict[str, tuple[Callable[[Arrays], Any], type[ExactlmError], str]] = {
    "missing": (lambda a: a.pop(f"{Q0}.weight"), CheckpointError, "q_proj.weight' is missing"),
    "bias not asked for": (
        lambda a: a.update({f"{Q0}.bias": np.zeros(128, np.float32)}),
        CheckpointError,
        "has no place in this architecture; converting would drop it",
    ),
    "another layer": (
        lambda a: a.update({"model.layers.2.input_layernorm.weight": np.zeros(64, np.float32)}),
        CheckpointError,
        "has no place",
    ),
    "shape": (
        lambda a: a.update({f"{Q0}.weight": a[f"{Q0}.weight"][:64].copy()}),
        CheckpointError,
        r"shape \[64, 64\], the configuration asks for \[128, 64\]",
    ),
    "transposed": (
        lambda a: a.update({f"{Q0}.weight": a[f"{Q0}.weight"].T.copy()}),
        CheckpointError,
        r"shape \[64, 128\]",
    ),
    "flat": (lambda a: a.update({f"{Q0}.weight": a[f"{Q0}.weight"].ravel()}), CheckpointError, r"shape \[8192\]"),
    "integers": (
        lambda a: a.update({f"{Q0}.weight": np.zeros((128, 64), np.int8)}),
        UnsupportedError,
        "is I8; weights must be F32, F16, BF16",
    ),
    "float64": (lambda a: a.update({f"{Q0}.weight": np.zeros((128, 64))}), CheckpointError, "dtype 'F64'"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_has_its_place(name: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf")
    change, kind, message = TENSORS[name]
    edit_tensors(path / "model.safetensors", change)
    with pytest.raises(kind, match=message) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("flag", ["attention_bias", "mlp_bias"])
def test_biases_that_the_configuration_asks_for_must_be_there(flag: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf")
    edit_json(path / "config.json", lambda v: v.update({flag: True}))
    with pytest.raises(CheckpointError, match=r"\.bias' is missing"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_stored_rotary_frequencies_are_left_out(name: str, tmp_path: Path) -> None:
    plain = convert(write_checkpoint(tmp_path / "hf"), tmp_path / "a")
    edit_tensors(tmp_path / "hf" / "model.safetensors", lambda a: a.update({name: np.ones(8, np.float32)}))
    with_them = convert(tmp_path / "hf", tmp_path / "b")
    assert (plain / "model.safetensors").read_bytes() == (with_them / "model.safetensors").read_bytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [f"{Q0}.weight", "model.norm.weight", EMBEDDING])
def test_weights_that_are_not_finite_stop_the_conversion(name: str, value: float, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf")
    edit_tensors(path / "model.safetensors", lambda a: a[name].reshape(-1).__setitem__(-1, value))
    with pytest.raises(CheckpointError, match=f"tensor '{name}' holds a NaN or infinity"):
        convert(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"]


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf")
    edit_json(path / "config.json", lambda v: v.update(vocab_size=400))
    for name in (EMBEDDING, HEAD):
        edit_tensors(path / "model.safetensors", lambda a, n=name: a.update({n: a[n][:400].copy()}))
    with pytest.raises(CheckpointError, match="the tokenizer has 500 tokens, the embedding only 400 rows"):
        convert(path, tmp_path / "out")


CONFIGS: dict[str, tuple[bytes, type[ExactlmError]]] = {
    "empty": (b"", CheckpointError),
    "list": (b"[]", CheckpointError),
    "no braces": (b'"llama"', CheckpointError),
    "UTF-16": ("{}".encode("utf-16"), CheckpointError),
    "twice": (b'{"model_type": "llama", "model_type": "mistral"}', CheckpointError),
    "NaN": (b'{"model_type": "llama", "rms_norm_eps": NaN}', CheckpointError),
    "deep": (b'{"a": ' + b"[" * 500_000, CheckpointError),
    "deep objects": (b'{"a": ' * 500_000, CheckpointError),
    "long number": (b'{"model_type": "llama", "vocab_size": ' + b"9" * 100_000 + b"}", CheckpointError),
    "large exponent": (b'{"model_type": "llama", "hidden_act": "silu", "num_attention_heads": 1e999}', ConfigError),
    "too large": (b'{"a": "' + b"x" * JSON_LIMIT + b'"}', CheckpointError),
    "lists": (b'{"model_type": "llama", "a": [' + b"[]," * 1_390_000 + b"[]]}", ConfigError),
    "surrogate": (b'{"model_type": "\\ud800"}', UnsupportedError),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_hostile_configuration(name: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "hf")
    raw, kind = CONFIGS[name]
    (path / "config.json").write_bytes(raw)
    with pytest.raises(kind, match=r"config\.json") as caught:
        open_checkpoint(path)
    assert len(str(caught.value)) < 500
    if len(raw) > 100_000:
        assert open_in_limits(path).startswith(kind.__name__)


def test_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "folder").mkdir()
    for path, message in (
        (tmp_path / "none", "no such file or directory"),
        (tmp_path / "none.gguf", "no such file or directory"),
        ("some/thing.gguf", "no such file or directory"),
        ("gpt2", "no such file or directory"),
        (tmp_path / "model.bin", "pickled checkpoints"),
        (tmp_path / "empty.gguf", "cannot be read"),
        (tmp_path / "folder", r"config\.json: no such file; is this a Hugging Face checkpoint"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


def test_a_local_path_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="which has no revision 'main'"):
        open_checkpoint(write_checkpoint(tmp_path / "hf"), revision="main")
