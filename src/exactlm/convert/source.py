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
    """One tensor under its Hugging Face name. `dtype` is the source's own, for example "BF16" or "Q4_1".

    `place` names the file, and the tensor as the file calls it.
    """

    name: str
    place: str
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
    rows = {
        "q_proj": q,
        "k_proj": kv,
        "v_proj": kv,
        "o_proj": d,
        "gate_proj": f,
        "up_proj": f,
        "down_proj": d,
        "embed_tokens": c.vocab_size,
        "lm_head": c.vocab_size,
    }
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


def check_tensors(
    path: Path, config: ModelConfig, tensors: Mapping[str, SourceTensor], also_allowed: Iterable[str] = ()
) -> None:
    """CheckpointError naming the first tensor that is missing, unexpected or of the wrong shape."""
    expected = expected_shapes(config)
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(f"{path}: tensor {name!r} is missing")
        if tensors[name].shape != shape:
            has = f"tensor {name!r} has shape {list(tensors[name].shape)}"
            raise CheckpointError(f"{path}: {has}, the configuration asks for {list(shape)}")
    if extra := sorted(tensors.keys() - expected.keys() - set(also_allowed)):
        what = f"tensor {extra[0]!r:.200} has no place in this architecture"
        raise CheckpointError(f"{path}: {what}; converting would drop it")
