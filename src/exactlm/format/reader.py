"""Opens a model directory: manifest, configuration and memory-mapped tensors, checked before anything is used. spec/format.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import FormatError
from exactlm.format.digest import sha256_array, sha256_file, sha256_json
from exactlm.format.tensorfile import TensorFile
from exactlm.format.writer import FORMAT_VERSION, WEIGHTS_FILE
from exactlm.numerics import SPEC_VERSION

JSON_LIMIT = 64 << 20
TEXT_FILES = ("chat_template.jinja", "text.json", "tokenizer.json")
MANIFEST_KEYS = {"format", "format_version", "spec_version", "files", "tensors", "source", "report"}


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object; FormatError naming the file if it is absent, too large, not JSON or not an object."""
    try:
        if path.stat().st_size > limit:
            raise FormatError(f"{path}: {path.stat().st_size} bytes is more than the {limit} expected of this file")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file; is {path.parent} an exactlm model made by `exactlm convert`?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: holds a {type(value).__name__}, an object is expected")
    return value


@dataclass(frozen=True)
class ModelDirectory:
    """A model on disk. `tensors` are views of the mapped file."""

    path: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    tensors: Mapping[str, NDArray[np.generic]]

    @property
    def model_digest(self) -> str:
        """spec/format.md 6."""
        tensors = {name: entry["sha256"] for name, entry in self.manifest["tensors"].items()}
        return sha256_json({"config": self.config, "spec_version": SPEC_VERSION, "tensors": tensors})

    @property
    def fingerprint(self) -> str:
        """Digest of spec version, model and tokenizer; the same on every platform. spec/format.md 6."""
        text = {name: entry["sha256"] for name, entry in self.manifest["files"].items() if name in TEXT_FILES}
        return sha256_json({"model": self.model_digest, "spec_version": SPEC_VERSION, "text": text})

    def verify(self) -> Iterator[tuple[str, bool]]:
        """Recomputes the digest of every file and tensor: (name, is it as the manifest says), as they are done."""
        for name, entry in self.manifest["files"].items():
            yield name, sha256_file(self.path / name) == entry["sha256"]
        for name, entry in self.manifest["tensors"].items():
            yield name, sha256_array(self.tensors[name]) == entry["sha256"]


def open_model(path: str | Path) -> ModelDirectory:
    """Opens and checks a model directory (sizes, names and versions; `verify` checks the digests)."""
    directory = Path(path)
    if not directory.is_dir():
        raise FormatError(f"{directory}: no such model directory; make one with `exactlm convert SRC -o {directory}`")
    manifest = read_json(directory / "manifest.json")
    _check_manifest(directory, manifest)
    for name, entry in manifest["files"].items():
        _check_file(directory, name, entry)
    config = read_json(directory / "config.json")
    file = TensorFile(directory / WEIGHTS_FILE)
    _check_tensors(directory, manifest, file)
    return ModelDirectory(directory, manifest, config, {name: file.array(name) for name in file.names()})


def _check_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    where = directory / "manifest.json"
    if manifest.get("format") != "exactlm":
        raise FormatError(f"{where}: format is {manifest.get('format')!r}, expected 'exactlm'")
    for key, ours in (("format_version", FORMAT_VERSION), ("spec_version", SPEC_VERSION)):
        if manifest.get(key) != ours:
            raise FormatError(f"{where}: {key} is {manifest.get(key)!r}, this exactlm reads {ours}; convert the checkpoint again")
    if manifest.keys() != MANIFEST_KEYS:
        odd = sorted(manifest.keys() ^ MANIFEST_KEYS)[0]
        raise FormatError(f"{where}: key {odd!r} is {'unknown' if odd in manifest else 'missing'}")
    for key, parts in (("files", ("bytes", "sha256")), ("tensors", ("dtype", "shape", "sha256"))):
        table = manifest[key]
        if not isinstance(table, dict) or not all(isinstance(e, dict) and set(e) == set(parts) for e in table.values()):
            raise FormatError(f"{where}: {key} must map names to objects of {', '.join(parts)}")
    for name in ("config.json", WEIGHTS_FILE, "tokenizer.json", "text.json"):
        if name not in manifest["files"]:
            raise FormatError(f"{where}: file {name!r} is not listed")


def _check_file(directory: Path, name: str, entry: dict[str, Any]) -> None:
    if Path(name).name != name or name in ("", ".", ".."):
        raise FormatError(f"{directory / 'manifest.json'}: {name!r} is not a plain file name")
    path = directory / name
    if not path.is_file():
        raise FormatError(f"{path}: listed in manifest.json but missing")
    if (size := path.stat().st_size) != entry["bytes"]:
        raise FormatError(f"{path}: has {size} bytes, manifest.json says {entry['bytes']}; it was cut or changed")


def _check_tensors(directory: Path, manifest: dict[str, Any], file: TensorFile) -> None:
    listed = manifest["tensors"]
    if odd := sorted(listed.keys() ^ set(file.names())):
        where = "manifest.json" if odd[0] in listed else WEIGHTS_FILE
        raise FormatError(f"{directory}: tensor {odd[0]!r} stands only in {where}")
    for name, entry in listed.items():
        if (file.dtype(name), list(file.shape(name))) != (entry["dtype"], entry["shape"]):
            raise FormatError(
                f"{directory / WEIGHTS_FILE}: tensor {name!r} is {file.dtype(name)} {list(file.shape(name))}, "
                f"manifest.json says {entry['dtype']} {entry['shape']}"
            )
