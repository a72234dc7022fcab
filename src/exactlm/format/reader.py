"""Opens a model directory: manifest, configuration and mapped tensors, checked before anything is used. spec/format.md.

Untrusted input: FormatError names the file and what is wrong. Knows nothing of what the tensors are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import FormatError
from exactlm.format.digest import sha256_array, sha256_file, sha256_json
from exactlm.format.json_object import read_object
from exactlm.format.tensorfile import TensorFile
from exactlm.format.writer import FORMAT_VERSION, TEXT_FILES, WEIGHTS_FILE
from exactlm.numerics import SPEC_VERSION

NEEDED = ("config.json", WEIGHTS_FILE, "tokenizer.json", "text.json")
MANIFEST_KEYS = {"format", "format_version", "spec_version", "files", "tensors", "source", "report"}
ABSENT = "is this an exactlm model, made by `exactlm convert`?"
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelDirectory:
    """A model on disk. `tensors` are views of the mapped file."""

    path: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    tensors: Mapping[str, NDArray[np.generic]]
    identity: tuple[int, ...]

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

    def check_unchanged(self) -> None:
        """FormatError if the directory was replaced since it was opened: files of two models must not be mixed."""
        if _identity(self.path) != self.identity:
            raise FormatError(f"{self.path}: was replaced while it was being opened; open it again")

    def verify(self) -> Iterator[tuple[str, bool]]:
        """Recomputes the digest of every file and tensor: (name, is it as the manifest says), as they are done."""
        for name, entry in self.manifest["files"].items():
            yield name, sha256_file(self.path / name) == entry["sha256"]
        yield from self.verify_tensors()

    def verify_tensors(self) -> Iterator[tuple[str, bool]]:
        """The same for the tensors alone, as they are mapped: whatever has become of the directory since."""
        for name, entry in self.manifest["tensors"].items():
            yield name, sha256_array(self.tensors[name]) == entry["sha256"]


def open_model(path: str | Path) -> ModelDirectory:
    """Opens and checks a model directory.

    Sizes, names, versions, and the digest of every file but the weights, which are only mapped: `verify` reads those.
    Raises FormatError.
    """
    directory = Path(path)
    if directory.is_file():
        target = f"{directory.stem}-exactlm"
        raise FormatError(
            f"{directory}: is a file, not a model directory; convert it: exactlm convert {directory} -o {target}"
        )
    if not directory.is_dir():
        raise FormatError(f"{directory}: no such model directory; make one with `exactlm convert SRC -o {directory}`")
    identity = _identity(directory) if (directory / "manifest.json").is_file() else ()
    manifest = read_object(directory / "manifest.json", FormatError, ABSENT)
    _check_manifest(directory / "manifest.json", manifest)
    for name, entry in manifest["files"].items():
        _check_file(directory / name, entry)
    config = read_object(directory / "config.json", FormatError, ABSENT)
    file = TensorFile(directory / WEIGHTS_FILE)
    _check_tensors(directory, manifest, file)
    model = ModelDirectory(directory, manifest, config, {name: file.array(name) for name in file.names()}, identity)
    model.check_unchanged()
    return model


def _check_manifest(where: Path, manifest: dict[str, Any]) -> None:
    if manifest.get("format") != "exactlm":
        raise FormatError(f"{where}: format is {manifest.get('format')!r:.100}, expected 'exactlm'")
    for key, ours in (("format_version", FORMAT_VERSION), ("spec_version", SPEC_VERSION)):
        found = manifest.get(key)
        if type(found) is not type(ours) or found != ours:
            raise FormatError(
                f"{where}: {key} is {found!r:.100}, this exactlm reads {ours}; convert the checkpoint again"
            )
    if odd := sorted(manifest.keys() ^ MANIFEST_KEYS):
        raise FormatError(f"{where}: key {odd[0]!r:.100} is {'unknown' if odd[0] in manifest else 'missing'}")
    for key in ("files", "tensors", "source", "report"):
        if not isinstance(manifest[key], dict):
            raise FormatError(f"{where}: {key} is not an object")
    for key, parts in (("files", {"bytes", "sha256"}), ("tensors", {"dtype", "shape", "sha256"})):
        for name, entry in manifest[key].items():
            if not isinstance(entry, dict) or set(entry) != parts:
                raise FormatError(f"{where}: {key}: {name!r:.100} must map to an object of {', '.join(sorted(parts))}")
            if not isinstance(entry["sha256"], str) or not SHA256.fullmatch(entry["sha256"]):
                raise FormatError(f"{where}: {key}: {name!r:.100}: sha256 is not 64 hexadecimal digits")
    source = manifest["source"]
    if set(source) != {"kind", "files"} or not isinstance(source["kind"], str) or not _is_digests(source["files"]):
        raise FormatError(f"{where}: source must hold a kind and files with their SHA-256")
    for name in NEEDED:
        if name not in manifest["files"]:
            raise FormatError(f"{where}: file {name!r} is not listed")
    if odd := sorted(manifest["files"].keys() - {*NEEDED, *TEXT_FILES}):
        raise FormatError(f"{where}: {odd[0]!r:.100} is not a file of a model directory")


def _check_file(path: Path, entry: dict[str, Any]) -> None:
    if not path.is_file():
        raise FormatError(f"{path}: listed in manifest.json but missing")
    if (size := path.stat().st_size) != entry["bytes"]:
        raise FormatError(
            f"{path}: has {size} bytes, manifest.json says {entry['bytes']!r:.100}; it was cut or changed"
        )
    if path.name != WEIGHTS_FILE and sha256_file(path) != entry["sha256"]:
        raise FormatError(f"{path}: its SHA-256 is not the one in manifest.json; it was changed after conversion")


def _check_tensors(directory: Path, manifest: dict[str, Any], file: TensorFile) -> None:
    listed = manifest["tensors"]
    if odd := sorted(listed.keys() ^ set(file.names())):
        where = "manifest.json" if odd[0] in listed else WEIGHTS_FILE
        raise FormatError(f"{directory}: tensor {odd[0]!r:.200} stands only in {where}")
    for name, entry in listed.items():
        found = (file.dtype(name), list(file.shape(name)))
        if found != (entry["dtype"], entry["shape"]):
            says = f"manifest.json says {entry['dtype']!r:.100} {entry['shape']!r:.100}"
            raise FormatError(f"{directory / WEIGHTS_FILE}: tensor {name!r:.200} is {found[0]} {found[1]}, {says}")


def _is_digests(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) and SHA256.fullmatch(v) for v in value.values())


def _identity(directory: Path) -> tuple[int, ...]:
    """What changes when another model is put in a directory's place."""
    try:
        stats = [directory.stat(), (directory / "manifest.json").stat()]
    except OSError as error:
        raise FormatError(f"{directory}: cannot be opened: {error.strerror}") from None
    return (stats[0].st_ino, stats[1].st_ino, stats[1].st_mtime_ns, stats[1].st_size)
