"""A model directory opens as it was written, or the error says what is wrong with it."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exactlm.errors import ExactlmError, FormatError
from exactlm.format.reader import open_model
from exactlm.models.config import ModelConfig

SMALL = ("config.json", "tokenizer.json", "text.json", "chat_template.jinja")


def edit(model: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Applies `change` to the manifest."""
    path = model / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_opens_as_written(model: Path) -> None:
    found = open_model(model)
    assert all(is_sound for _, is_sound in found.verify())
    assert len(list(found.verify())) == len(found.manifest["files"]) + len(found.tensors)
    for name, array in found.tensors.items():
        assert array.ctypes.data % 64 == 0, name  # spec/format.md 2
        assert array.nbytes % 64 == 0, name
    ModelConfig.from_dict(found.config)


def test_digests_are_those_of_the_specification(model: Path) -> None:
    """spec/format.md 6, written out."""

    def canonical(value: object) -> str:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    found = open_model(model)
    tensors = {}
    for name, array in found.tensors.items():
        tensors[name] = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    config = json.loads((model / "config.json").read_text())
    version = found.manifest["spec_version"]
    digest = canonical({"config": config, "spec_version": version, "tensors": tensors})
    assert found.model_digest == digest
    names = ("chat_template.jinja", "text.json", "tokenizer.json")
    text = {name: hashlib.sha256((model / name).read_bytes()).hexdigest() for name in names}
    assert found.fingerprint == canonical({"model": digest, "spec_version": version, "text": text})


Manifest = dict[str, Any]
EDITS: dict[str, tuple[Callable[[Manifest], Any], str]] = {
    "format": (lambda m: m.update(format="gguf"), "format is 'gguf'"),
    "format_version 2": (lambda m: m.update(format_version=2), "format_version is 2, this exactlm reads 1"),
    "format_version true": (lambda m: m.update(format_version=True), "format_version is True"),
    "spec_version 99": (lambda m: m.update(spec_version=99), "spec_version is 99"),
    "spec_version gone": (lambda m: m.pop("spec_version"), "spec_version is None"),
    "unknown key": (lambda m: m.update(made_by="me"), "'made_by' is unknown"),
    "report gone": (lambda m: m.pop("report"), "'report' is missing"),
    "files list": (lambda m: m.update(files=[]), "files is not an object"),
    "tensors text": (lambda m: m.update(tensors="x"), "tensors is not an object"),
    "source odd": (lambda m: m.update(source={"kind": 1}), "source must hold"),
    "file entry": (lambda m: m["files"].update({"text.json": 1}), "'text.json' must map"),
    "digest short": (lambda m: m["files"]["text.json"].update(sha256="ab"), "not 64 hexadecimal digits"),
    "digest list": (lambda m: m["tensors"]["embed.codes"].update(sha256=[]), "not 64 hexadecimal digits"),
    "file unlisted": (lambda m: m["files"].pop("text.json"), "'text.json' is not listed"),
    "path upward": (lambda m: m["files"].update({"../x": m["files"]["text.json"]}), "'../x' is not a file of a model"),
    "absolute path": (lambda m: m["files"].update({"/x": m["files"]["text.json"]}), "'/x' is not a file of a model"),
    "size": (lambda m: m["files"]["text.json"].update(bytes=1), "manifest.json says 1"),
    "size text": (lambda m: m["files"]["text.json"].update(bytes="9"), "manifest.json says '9'"),
    "other digest": (lambda m: m["files"]["text.json"].update(sha256="0" * 64), "SHA-256 is not the one"),
    "tensor unlisted": (lambda m: m["tensors"].pop("embed.codes"), "'embed.codes' stands only in model.safetensors"),
    "tensor too many": (
        lambda m: m["tensors"].update(x=m["tensors"]["embed.codes"]),
        "'x' stands only in manifest.json",
    ),
    "tensor dtype": (lambda m: m["tensors"]["embed.codes"].update(dtype="I8"), "manifest.json says 'I8'"),
    "tensor shape": (lambda m: m["tensors"]["embed.codes"].update(shape=[1]), r"manifest.json says 'U8' \[1\]"),
}


@pytest.mark.parametrize("name", EDITS)
def test_bad_manifest_is_refused_by_name(name: str, model: Path) -> None:
    change, message = EDITS[name]
    edit(model, change)
    with pytest.raises(FormatError, match=message) as caught:
        open_model(model)
    assert str(model) in str(caught.value)


@pytest.mark.parametrize("name", [*SMALL, "model.safetensors", "manifest.json"])
def test_missing_file(name: str, model: Path) -> None:
    (model / name).unlink()
    with pytest.raises(FormatError, match=name):
        open_model(model)


@pytest.mark.parametrize("cut", [1, 4096, None])
@pytest.mark.parametrize("name", [*SMALL, "model.safetensors"])
def test_cut_file_names_both_sizes(name: str, cut: int | None, model: Path) -> None:
    raw = (model / name).read_bytes()
    left = len(raw) // 2 if cut is None else max(0, len(raw) - cut)
    (model / name).write_bytes(raw[:left])
    with pytest.raises(FormatError, match=f"{name}: has {left} bytes, manifest.json says {len(raw)}"):
        open_model(model)


@pytest.mark.parametrize("name", SMALL)
def test_changed_small_file_is_refused_at_once(name: str, model: Path) -> None:
    raw = bytearray((model / name).read_bytes())
    raw[len(raw) // 2] ^= 1
    (model / name).write_bytes(raw)
    with pytest.raises(FormatError, match=f"{name}: its SHA-256 is not the one"):
        open_model(model)


def test_verify_finds_the_changed_weight(model: Path) -> None:
    at = (model / "model.safetensors").stat().st_size - 1
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    damaged = [name for name, is_sound in open_model(model).verify() if not is_sound]
    assert damaged == ["model.safetensors", "head.scales"]


def test_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such model directory"):
        open_model(tmp_path / "none")
    with pytest.raises(FormatError, match=r"manifest\.json: no such file"):
        open_model(tmp_path)
    for text in ("[]", "{", '{"a": 1, "a": 2}', "[" * 100_000, "\ud800"):
        (tmp_path / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(FormatError, match=r"manifest\.json"):
            open_model(tmp_path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_of_the_manifest_gives_an_error_or_the_same_model(model: Path, data: st.DataObject) -> None:
    path = model / "manifest.json"
    sound = path.with_suffix(".sound")
    if not sound.exists():
        sound.write_bytes(path.read_bytes())
    raw = bytearray(sound.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + 1] = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b'"', b"}", b"9", b"-", b"null"])))
    path.write_bytes(raw)
    try:
        found = open_model(model)
        ModelConfig.from_dict(found.config)
        list(found.verify())
        assert len(found.fingerprint) == 64
    except ExactlmError:
        pass
