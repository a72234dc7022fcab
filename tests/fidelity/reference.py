"""Runs the float oracle in its own process, under EXACTLM_ORACLE_PYTHON, and keeps its answers in .cache/oracle.

Knows no model and no metric; it hands out arrays of logits.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PROGRAM = Path(__file__).with_name("oracle.py")
CACHE = Path(__file__).parents[2] / ".cache" / "oracle"
PACKAGES = ("torch", "transformers")
PROBE = "import importlib.metadata as m, sys\nfor name in sys.argv[1:]: print(name, m.version(name), flush=True)"


class MissingPackageError(Exception):
    """The oracle's interpreter lacks a package; the text names it."""


@dataclass(frozen=True)
class Oracle:
    """transformers under `python`; `versions` is part of the key of every cached answer."""

    python: str
    versions: str

    @classmethod
    def find(cls) -> Oracle:
        """The interpreter named by EXACTLM_ORACLE_PYTHON, by default this one. Raises MissingPackageError."""
        python = os.environ.get("EXACTLM_ORACLE_PYTHON") or sys.executable
        found = subprocess.run([python, "-c", PROBE, *PACKAGES], capture_output=True, text=True)
        if found.returncode:
            missing = PACKAGES[len(found.stdout.splitlines())]
            raise MissingPackageError(f"no package {missing} in {python} (set EXACTLM_ORACLE_PYTHON)")
        return cls(python, found.stdout)

    def logits(
        self, directory: Path, ids: NDArray[np.int64], gguf_file: str | None = None, decode: bool = False
    ) -> NDArray[np.float32]:
        """Float32 logits [N, T, V] of the sequences `ids` [N, T], mapped from the file that caches them."""
        options = [f"--gguf-file={gguf_file}"] if gguf_file else []
        options += ["--decode"] if decode else []
        files = [directory / gguf_file] if gguf_file else [directory / "config.json", directory / "model.safetensors"]
        key = hashlib.sha256("\0".join([self.versions, *options]).encode())
        for data in (PROGRAM.read_bytes(), *(file.read_bytes() for file in files), np.ascontiguousarray(ids).tobytes()):
            key.update(hashlib.sha256(data).digest())
        path = CACHE / f"{key.hexdigest()[:32]}.npy"
        if not path.is_file():
            CACHE.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                given, made = Path(scratch) / "ids.npy", Path(scratch) / "logits.npy"
                np.save(given, ids)
                self._run([str(directory), str(given), str(made), *options])
                made.replace(path)
        return np.load(path, mmap_mode="r")

    def _run(self, arguments: list[str]) -> None:
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        done = subprocess.run([self.python, str(PROGRAM), *arguments], env=offline, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the oracle failed:\n{done.stderr}")
