"""GGUF checkpoints of the llama architecture: names, configuration and values as Hugging Face has them."""

from __future__ import annotations

import dataclasses
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from exactlm.convert.gguf_header import TensorInfo, read_header
from exactlm.convert.source import F32, Checkpoint, SourceTensor, check_tensors
from exactlm.errors import ConfigError, UnsupportedError
from exactlm.models.config import ModelConfig
from exactlm.models.rope_scaling import RopeScaling, from_divisors

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
BLOCK_ROWS_VALUES = 1 << 22
ROPE_FACTORS = "rope_freqs.weight"
DEFAULT_ROPE_BASE = 10000.0  # what the GGUF specification itself says for an absent llama.rope.freq_base


def huggingface_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None if the architecture has no such tensor."""
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    if stem in NAMES:
        return f"{NAMES[stem]}.{kind}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None or match[2] not in PARTS:
        return None
    return f"model.layers.{int(match[1])}.{PARTS[match[2]]}.{kind}"


class GgufTensor(SourceTensor):
    """A tensor of a GGUF file. `heads`: rows are in llama.cpp's permuted order of that many heads, which read() undoes."""

    def __init__(self, path: Path, data: mmap.mmap, info: TensorInfo, name: str, heads: int | None) -> None:
        self.name, self.shape, self.dtype = name, info.shape, info.kind.name
        self._path, self._data, self._info, self._heads = path, data, info, heads
        if self.dtype not in SUPPORTED:
            raise UnsupportedError(f"{path}: tensor {info.name!r} is {self.dtype}; these are read: {', '.join(SUPPORTED)}")

    def read(self) -> F32:
        rows = self._rows()
        step = max(1, BLOCK_ROWS_VALUES // self.shape[-1])
        with np.errstate(all="ignore"):  # a damaged scale gives a NaN or infinity, which the converter refuses by name
            blocks = [dequantize(rows[i : i + step], self._info.kind) for i in range(0, len(rows), step)]
        values = np.concatenate(blocks).astype(np.float32, copy=False).reshape(self.shape)
        return self._unpermute(values)

    def read_q8_0(self) -> tuple[NDArray[np.int8], NDArray[np.float16]] | None:
        if self._info.kind != GGMLQuantizationType.Q8_0:
            return None
        blocks = self._rows().reshape(self.shape[0], -1, 34)
        scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2").reshape(self.shape[0], -1)
        codes = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(self.shape)
        if np.signbit(scales).any() or not np.isfinite(scales).all():
            return None
        return self._unpermute(codes), self._unpermute(scales)

    def _rows(self) -> NDArray[np.generic]:
        """Raw data as the gguf package's dequantisers want it: typed floats, or bytes of quantised rows."""
        raw = np.frombuffer(self._data, np.uint8, self._info.end - self._info.begin, self._info.begin)
        kind = self._info.kind
        rows = raw.reshape(-1 if len(self.shape) > 1 else 1, raw.size // (self.shape[0] if len(self.shape) > 1 else 1))
        types = {GGMLQuantizationType.F32: "<f4", GGMLQuantizationType.F16: "<f2"}
        return rows.view(types[kind]) if kind in types else rows

    def _unpermute(self, rows: NDArray[Any]) -> NDArray[Any]:
        if self._heads is None:
            return rows
        half = rows.shape[0] // self._heads // 2
        split = rows.reshape(self._heads, half, 2, *rows.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


class GgufCheckpoint(Checkpoint):
    """See convert/source.py."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        header, data = read_header(path)
        self.gguf_metadata = header.metadata
        self.files = {path.name: path}
        metadata = _Metadata(path, header.metadata)
        infos = dict(header.tensors)
        factors = infos.pop(ROPE_FACTORS, None)
        for name in infos:
            if huggingface_name(name) is None:
                raise UnsupportedError(f"{path}: tensor {name!r} has no place in the llama architecture; converting would drop it")
        self.config = _config(metadata, infos)
        if factors is not None:
            values = GgufTensor(path, data, factors, ROPE_FACTORS, None).read().reshape(-1)
            self.config = _apply_factors(path, self.config, values)
        heads = {"attn_q": self.config.num_heads, "attn_k": self.config.num_kv_heads}
        tensors: dict[str, SourceTensor] = {}
        for name, info in infos.items():
            renamed = str(huggingface_name(name))
            part = name.split(".")[-2]
            tensors[renamed] = GgufTensor(path, data, info, renamed, heads.get(part))
        check_tensors(path, self.config, tensors)
        self.tensors = tensors


class _Metadata:
    """Typed access to keys of the llama architecture."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self._values = path, values
        architecture = values.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedError(f"{path}: general.architecture={architecture!r} is not implemented; 'llama' is")

    def get(self, key: str, kind: type) -> Any:
        """Value of llama.<key>, or None; ConfigError if its type is another."""
        value = self._values.get(f"llama.{key}")
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise ConfigError(f"{self.path}: llama.{key}={value!r:.80}: must be of type {kind.__name__}")
        return value

    def require(self, key: str, kind: type) -> Any:
        value = self.get(key, kind)
        if value is None:
            raise ConfigError(f"{self.path}: key 'llama.{key}' is missing")
        return value

    def keys(self) -> set[str]:
        return {k.removeprefix("llama.") for k in self._values if k.startswith("llama.")}

    @property
    def num_tokens(self) -> int:
        tokens = self._values.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens:
            raise ConfigError(f"{self.path}: key 'tokenizer.ggml.tokens' is missing")
        return len(tokens)


KNOWN_KEYS = frozenset(
    "vocab_size context_length embedding_length block_count feed_forward_length attention.head_count attention.head_count_kv "
    "attention.layer_norm_rms_epsilon attention.key_length attention.value_length attention.sliding_window rope.freq_base rope.dimension_count "
    "rope.scaling.type rope.scaling.factor rope.scaling.original_context_length rope.scaling.attn_factor rope.scaling.finetuned "
    "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scale_linear expert_count expert_used_count tensor_data_layout".split()
)


def _config(m: _Metadata, infos: Mapping[str, TensorInfo]) -> ModelConfig:
    if odd := sorted(m.keys() - KNOWN_KEYS):
        raise ConfigError(f"{m.path}: key 'llama.{odd[0]}' is unknown; it may change the model, so it is not ignored")
    if m.get("expert_count", int):
        raise UnsupportedError(f"{m.path}: llama.expert_count={m.get('expert_count', int)}: mixtures of experts are not implemented")
    hidden, heads = m.require("embedding_length", int), m.require("attention.head_count", int)
    if hidden < 1 or heads < 1:
        raise ConfigError(f"{m.path}: llama.embedding_length={hidden}, llama.attention.head_count={heads}: must be positive")
    head_dim = m.get("attention.key_length", int) or hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if m.get(key, int) not in (None, head_dim):
            raise UnsupportedError(f"{m.path}: llama.{key}={m.get(key, int)} differs from the head dimension {head_dim}, which is not implemented")
    embedding = infos.get("token_embd.weight")
    rows = embedding.shape[0] if embedding is not None else m.num_tokens
    config = ModelConfig(
        model_type="llama",
        vocab_size=rows,
        num_tokens=min(m.num_tokens, rows),
        hidden_size=hidden,
        num_layers=m.require("block_count", int),
        num_heads=heads,
        num_kv_heads=m.get("attention.head_count_kv", int) or heads,
        head_dim=head_dim,
        intermediate_size=m.require("feed_forward_length", int),
        rms_norm_eps=m.require("attention.layer_norm_rms_epsilon", float),
        rope_theta=m.get("rope.freq_base", float) or DEFAULT_ROPE_BASE,
        rope_scaling=_scaling(m),
        max_position_embeddings=m.require("context_length", int),
        tie_word_embeddings="output.weight" not in infos,
        attention_bias="blk.0.attn_q.bias" in infos,
        mlp_bias="blk.0.ffn_gate.bias" in infos,
        attention_window=m.get("attention.sliding_window", int) or None,
    )
    config.check(str(m.path))
    return config


def _scaling(m: _Metadata) -> RopeScaling | None:
    kind = m.get("rope.scaling.type", str) or "none"
    factor = m.get("rope.scaling.factor", float) or m.get("rope.scale_linear", float)
    if kind == "none" or (kind == "linear" and factor in (None, 1.0)):
        return None
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=m.require("rope.scaling.factor", float),
            original_max_position_embeddings=m.require("rope.scaling.original_context_length", int),
            attention_factor=m.get("rope.scaling.attn_factor", float),
            beta_fast=m.get("rope.scaling.yarn_beta_fast", float),
            beta_slow=m.get("rope.scaling.yarn_beta_slow", float),
        )
    raise UnsupportedError(f"{m.path}: llama.rope.scaling.type={kind!r} is not implemented; 'none', 'linear' and 'yarn' are")


def _apply_factors(path: Path, config: ModelConfig, factors: F32) -> ModelConfig:
    """rope_freqs.weight divides each frequency: how GGUF stores llama3 scaling."""
    if config.rope_scaling is not None:
        raise UnsupportedError(f"{path}: tensor {ROPE_FACTORS!r} together with llama.rope.scaling.type is not implemented")
    if np.all(factors == 1):
        return config
    scaled = dataclasses.replace(config, rope_scaling=from_divisors(factors.tolist(), str(path)))
    scaled.check(str(path))
    return scaled
