"""GGUF checkpoints of the llama architecture: tensors under the names and in the order that Hugging Face gives them."""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from exactlm.convert.gguf_config import ROPE_FACTORS, apply_divisors, parse_metadata
from exactlm.convert.gguf_header import TensorInfo, read_header
from exactlm.convert.source import F32, Checkpoint, SourceTensor, check_tensors
from exactlm.errors import CheckpointError, UnsupportedError
from exactlm.models.config import ModelConfig

SUPPORTED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BLOCK_VALUES = 1 << 20  # dequantised at once: bounds the memory of the package's intermediate arrays


def huggingface_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None if the architecture has no such tensor."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    match = re.fullmatch(r"blk\.([0-9]{1,4})\.(\w+)", stem)
    if match is None or match[2] not in PARTS:
        return None
    return f"model.layers.{int(match[1])}.{PARTS[match[2]]}.{kind}"


class GgufTensor(SourceTensor):
    """A tensor of a GGUF file. `heads`: its rows are in llama.cpp's permuted order of that many heads, undone here."""

    def __init__(self, path: Path, data: mmap.mmap, info: TensorInfo, name: str, heads: int | None) -> None:
        self.name, self.shape, self.dtype = name, info.shape, info.kind.name
        self.place = f"{path}: tensor {info.name!r:.100}"
        self._data, self._info, self._heads = data, info, heads
        if self.dtype not in SUPPORTED:
            raise UnsupportedError(f"{self.place} is {self.dtype}; these are read: {', '.join(SUPPORTED)}")

    def read(self) -> F32:
        rows = self._rows()
        values = np.empty((len(rows), self.shape[-1]), np.float32)
        step = max(1, BLOCK_VALUES // self.shape[-1])
        with np.errstate(all="ignore"):  # a damaged scale gives a NaN or infinity, which the converter refuses by name
            for i in range(0, len(rows), step):
                values[i : i + step] = dequantize(rows[i : i + step], self._info.kind)
        return self._unpermute(values.reshape(self.shape))

    def read_q8_0(self) -> tuple[NDArray[np.int8], NDArray[np.float16]] | None:
        if self._info.kind != GGMLQuantizationType.Q8_0:
            return None
        blocks = self._rows().reshape(self.shape[0], -1, 34)
        scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").reshape(self.shape[0], -1)
        codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(self.shape)
        return self._unpermute(codes), self._unpermute(scales)

    def _rows(self) -> NDArray[np.generic]:
        """Raw data as the gguf package's dequantisers want it: typed floats, or bytes of quantised rows."""
        raw = np.frombuffer(self._data, np.uint8, self._info.end - self._info.begin, self._info.begin)
        rows = raw.reshape(math.prod(self.shape[:-1]), -1)
        types = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"}
        return rows.view(types[self._info.kind]) if self._info.kind in types else rows

    def _unpermute(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (or values of a bias) from pairs side by side to the two halves of numerics.md 6.4."""
        if self._heads is None:
            return rows
        half = rows.shape[0] // self._heads // 2
        split = rows.reshape(self._heads, half, 2, *rows.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


class GgufCheckpoint(Checkpoint):
    """See convert/source.py."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        header, data = read_header(path)
        infos = dict(header.tensors)
        factors = infos.pop(ROPE_FACTORS, None)
        self.config = parse_metadata(path, header.metadata, infos)
        if factors is not None:
            self.config = apply_divisors(path, self.config, _read_divisors(path, data, factors, self.config))
        heads = {"attn_q": self.config.num_heads, "attn_k": self.config.num_kv_heads}
        tensors: dict[str, SourceTensor] = {}
        for name, info in infos.items():
            renamed = huggingface_name(name)
            if renamed is None or renamed in tensors:
                what = f"tensor {name!r:.100} has no place in the llama architecture"
                raise UnsupportedError(f"{path}: {what}; converting would drop it")
            tensors[renamed] = GgufTensor(path, data, info, renamed, heads.get(name.split(".")[-2]))
        check_tensors(path, self.config, tensors)
        self.path, self.tensors, self.files = path, tensors, {path.name: path}
        self.gguf_metadata = header.metadata


def _read_divisors(path: Path, data: mmap.mmap, info: TensorInfo, config: ModelConfig) -> list[float]:
    wanted = (config.head_dim // 2,)
    if info.shape != wanted:
        what = f"tensor {ROPE_FACTORS!r} has shape {list(info.shape)}"
        raise CheckpointError(f"{path}: {what}, the configuration asks for {list(wanted)}")
    return [float(v) for v in GgufTensor(path, data, info, ROPE_FACTORS, None).read()]
