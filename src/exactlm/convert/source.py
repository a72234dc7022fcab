"""What a checkpoint is to the converter: a configuration and named float tensors, whatever the file format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import CheckpointError
from exactlm.models.config import ModelConfig
from exactlm.models.weights import plan

F32 = NDArray[np.float32]


class SourceTensor(ABC):
    """One tensor under its Hugging Face name. `dtype` is the source's own, for example "BF16" or "Q4_1"."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def read(self) -> F32:
        """The values, exactly, as fp32."""

    def read_q8_0(self) -> tuple[NDArray[np.int8], NDArray[np.float16]] | None:
        """Codes [N, K] and scales [N, K/32] where the source stores GGUF Q8_0; otherwise None."""
        return None


class Checkpoint(ABC):
    """An opened source. `files` are what is digested: everything that was read."""

    path: Path
    kind: str
    config: ModelConfig
    tensors: Mapping[str, SourceTensor]
    files: Mapping[str, Path]
    directory: Path | None = None
    gguf_metadata: Mapping[str, Any] | None = None


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that a checkpoint of this configuration must have, no more and no less."""
    c = config
    d, f, q, kv = c.hidden_size, c.intermediate_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv, "o_proj": d, "gate_proj": f, "up_proj": f, "down_proj": d, "embed_tokens": c.vocab_size, "lm_head": c.vocab_size}
    columns = {"o_proj": q, "down_proj": f}
    shapes: dict[str, tuple[int, ...]] = {}
    for item in plan(config):
        for name in item.sources:
            part, kind = name.split(".")[-2:]
            if part not in rows:
                shapes[name] = (d,)
            else:
                shapes[name] = (rows[part],) if kind == "bias" else (rows[part], columns.get(part, d))
    return shapes


def check_tensors(path: Path, config: ModelConfig, tensors: Mapping[str, SourceTensor], also_allowed: Iterable[str] = ()) -> None:
    """CheckpointError naming the first tensor that is missing, unexpected or of the wrong shape."""
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{path}: tensor {name!r} is missing")
        if tensors[name].shape != shape:
            raise CheckpointError(f"{path}: tensor {name!r} has shape {list(tensors[name].shape)}, the configuration asks for {list(shape)}")
    if extra := sorted(tensors.keys() - expected.keys() - set(also_allowed)):
        raise CheckpointError(f"{path}: tensor {extra[0]!r} has no place in this architecture; converting would drop it")


def open_checkpoint(path: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Opens a .gguf file, a Hugging Face directory, or (extra `hub`) a hub id. Raises CheckpointError, ConfigError or UnsupportedError."""
    from exactlm.convert.gguf_source import GgufCheckpoint
    from exactlm.convert.huggingface import HuggingFaceCheckpoint
    from exactlm.convert.hub import download

    local = Path(path)
    if local.is_dir():
        return HuggingFaceCheckpoint(local)
    if local.is_file():
        if local.suffix != ".gguf":
            raise CheckpointError(f"{local}: is neither a directory nor a .gguf file; pickled checkpoints (.bin, .pt, .pth) are never loaded")
        return GgufCheckpoint(local)
    if local.suffix == ".gguf" or local.is_absolute() or str(path).startswith((".", "~")) or str(path).count("/") != 1:
        raise CheckpointError(f"{path}: no such file or directory")
    return HuggingFaceCheckpoint(download(str(path), revision))
