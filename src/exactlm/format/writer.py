"""Writes a model directory: into a temporary directory beside the target, renamed when complete. spec/format.md."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import FormatError
from exactlm.format.digest import file_json, sha256_array, sha256_file
from exactlm.format.json_object import read_object
from exactlm.numerics import SPEC_VERSION

FORMAT_VERSION = 1
ALIGN = 64
WEIGHTS_FILE = "model.safetensors"
TEXT_FILES = ("chat_template.jinja", "text.json", "tokenizer.json")
MODEL_FILES = {"config.json", WEIGHTS_FILE, "manifest.json", *TEXT_FILES}
ITEM_BYTES = {"U8": 1, "U16": 2, "F32": 4}

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


class ModelWriter:
    """Use as a context manager: leaves the whole model at `target`, or nothing.

    `shapes` names every tensor in file order with its dtype and shape, so that the header is known before the first
    tensor. Other files may be written into `directory` until finish(). Raises FormatError if the target may not be
    overwritten or the disk refuses.
    """

    def __init__(self, target: Path, shapes: Shapes, *, overwrite: bool = False) -> None:
        self.target, self._shapes, self._overwrite = target, dict(shapes), overwrite
        self._check_target()
        self.directory = target  # until __enter__ makes the temporary one
        self._tensors: dict[str, dict[str, Any]] = {}
        self._pending = list(self._shapes)
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()

    def __enter__(self) -> ModelWriter:
        header = _header(self._shapes)
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.directory = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
            self._file = (self.directory / WEIGHTS_FILE).open("wb")
            self._append(header)
        except BaseException as error:
            self._discard()
            raise self._explain(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._discard()
        if isinstance(error, OSError):
            raise self._explain(error) from error

    def _check_target(self) -> None:
        """FormatError unless the target is free, or a model of ours that may be replaced."""
        target = self.target
        if not os.path.lexists(target):
            return
        if not self._overwrite:
            raise FormatError(
                f"{target} exists already; choose another directory, or allow overwriting it (--overwrite)"
            )
        if odd := _foreign(target):
            raise FormatError(f"{target} {odd}, so it is not overwritten; choose another directory")

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
        if self.directory != self.target and self.directory.exists():
            shutil.rmtree(self.directory)

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, OSError):
            return FormatError(f"{self.target}: cannot be written: {error.filename or ''} {error.strerror or error}")
        return error

    def _append(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.write(data)
        self._hash.update(data)

    def write_tensor(self, name: str, array: NDArray[np.generic]) -> None:
        """Appends the next tensor; its name, dtype and shape must be the announced ones."""
        dtype, shape = self._shapes.get(name, ("no tensor", ()))
        expected = {"U8": np.uint8, "U16": np.uint16, "F32": np.float32}.get(dtype)
        if [name] != self._pending[:1] or array.dtype != expected or array.shape != shape:
            found = f"tensor {name!r} {array.dtype} {list(array.shape)}"
            raise FormatError(f"{found} is not the next one of the plan: {self._pending[:1]}, {dtype} {list(shape)}")
        self._pending.pop(0)
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        self._append(little.reshape(-1).view(np.uint8).data)
        self._tensors[name] = {"dtype": dtype, "shape": list(shape), "sha256": sha256_array(array)}

    def write_file(self, name: str, data: bytes) -> None:
        """Adds a file beside the weights."""
        (self.directory / name).write_bytes(data)

    def finish(self, source: Mapping[str, Any], report: Mapping[str, Any]) -> None:
        """Writes the manifest and puts the directory in place."""
        if self._pending:
            raise FormatError(f"tensor {self._pending[0]!r} was announced but not written")
        assert self._file is not None
        self._file.close()
        files = {}
        for path in sorted(self.directory.iterdir()):
            digest = self._hash.hexdigest() if path.name == WEIGHTS_FILE else sha256_file(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": digest}
        manifest = {
            "format": "exactlm",
            "format_version": FORMAT_VERSION,
            "spec_version": SPEC_VERSION,
            "files": files,
            "tensors": self._tensors,
            "source": dict(source),
            "report": dict(report),
        }
        (self.directory / "manifest.json").write_bytes(file_json(manifest))
        self.directory.chmod(0o755)
        _sync(self.directory)
        self._replace()

    def _replace(self) -> None:
        self._check_target()  # it may have appeared since
        if not self.target.exists():
            self.directory.rename(self.target)
            return
        old = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.old.", dir=self.target.parent)) / "model"
        try:
            self.target.rename(old)
            self.directory.rename(self.target)
        except BaseException:
            if not self.target.exists() and old.exists():
                old.rename(self.target)
            raise
        finally:
            if self.target.exists():
                shutil.rmtree(old.parent, ignore_errors=True)  # what cannot be removed here does no harm


def _foreign(target: Path) -> str | None:
    """Why a directory is not one that a ModelWriter made; None if it is."""
    if target.is_symlink() or not target.is_dir():
        return "exists and is not a directory"
    try:
        is_ours = read_object(target / "manifest.json", FormatError, "").get("format") == "exactlm"
    except FormatError:
        is_ours = False
    if not is_ours:
        return "exists and is not an exactlm model"
    odd = sorted({p.name for p in target.iterdir()} - MODEL_FILES)
    return f"holds {odd[0]!r}, which exactlm did not write" if odd else None


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _header(shapes: Shapes) -> bytes:
    entries, offset = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
        if size % ALIGN:
            raise FormatError(f"tensor {name!r} has {size} bytes, not a multiple of {ALIGN}")
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGN)
    return len(text).to_bytes(8, "little") + text
