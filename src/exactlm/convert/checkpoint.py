"""Which kind of checkpoint a path or hub id is."""

from __future__ import annotations

from pathlib import Path

from exactlm.convert.gguf_source import GgufCheckpoint
from exactlm.convert.hub import download
from exactlm.convert.huggingface import HuggingFaceCheckpoint
from exactlm.convert.source import Checkpoint
from exactlm.errors import CheckpointError


def open_checkpoint(path: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Opens a .gguf file, a Hugging Face directory, or (extra `hub`) a hub id.

    Raises CheckpointError, ConfigError or UnsupportedError, and has read no weights but for comparing a tied head.
    """
    local = Path(path)
    if revision is not None and local.exists():
        raise CheckpointError(f"{path}: is a local path, which has no revision {revision!r}; leave the revision out")
    if local.is_dir():
        return HuggingFaceCheckpoint(local)
    if local.is_file():
        if local.suffix != ".gguf":
            pickled = "pickled checkpoints (.bin, .pt, .pth) are never loaded"
            raise CheckpointError(f"{local}: is neither a directory nor a .gguf file; {pickled}")
        return GgufCheckpoint(local)
    if local.suffix == ".gguf" or local.is_absolute() or str(path).startswith((".", "~")) or str(path).count("/") != 1:
        what = "a Hugging Face directory, a .gguf file or a hub id (owner/name)"
        raise CheckpointError(f"{path}: no such file or directory: give {what}")
    return HuggingFaceCheckpoint(download(str(path), revision))
