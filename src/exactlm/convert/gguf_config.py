"""The configuration of a GGUF file of the llama architecture: metadata read strictly, nothing ignored in silence."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exactlm.convert.gguf_header import TensorInfo
from exactlm.errors import ConfigError, UnsupportedError
from exactlm.models.config import ModelConfig
from exactlm.models.rope_scaling import RopeScaling, from_divisors, make_scaling

ROPE_FACTORS = "rope_freqs.weight"
DEFAULT_ROPE_BASE = 10000.0  # what the GGUF specification itself says for an absent llama.rope.freq_base
_KNOWN = """
    attention.head_count attention.head_count_kv attention.key_length attention.layer_norm_rms_epsilon
    attention.sliding_window attention.value_length block_count context_length embedding_length expert_count
    expert_used_count feed_forward_length rope.dimension_count rope.freq_base rope.scale_linear
    rope.scaling.attn_factor rope.scaling.factor rope.scaling.finetuned rope.scaling.original_context_length
    rope.scaling.type rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow tensor_data_layout vocab_size
"""
KNOWN_KEYS = frozenset(_KNOWN.split())
PERMUTED = "Meta AI original pth"  # the only layout there is: rotary pairs side by side
YARN_KEYS = {"rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow"}


def parse_metadata(path: Path, values: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> ModelConfig:
    """The model that a GGUF file describes, rope_freqs left out.

    ConfigError names a missing, unknown or bad value, UnsupportedError what is not implemented.
    """
    m = _Metadata(path, values)
    m.check_keys()
    heads, hidden = m.require("attention.head_count", int), m.require("embedding_length", int)
    if heads < 1 or hidden < 1:
        raise ConfigError(
            f"{path}: llama.attention.head_count={heads}, llama.embedding_length={hidden}: must be positive"
        )
    num_tokens = m.count_tokens()
    rows = infos["token_embd.weight"].shape[0] if "token_embd.weight" in infos else num_tokens
    m.expect("vocab_size", rows, "the rows of token_embd.weight")
    config = ModelConfig(
        model_type="llama",
        vocab_size=rows,
        num_tokens=min(num_tokens, rows),  # more tokens than rows are refused when the tokenizer is built
        hidden_size=hidden,
        num_layers=m.require("block_count", int),
        num_heads=heads,
        num_kv_heads=m.get("attention.head_count_kv", int, heads),
        head_dim=_head_dim(m, hidden, heads),
        intermediate_size=m.require("feed_forward_length", int),
        rms_norm_eps=m.require("attention.layer_norm_rms_epsilon", float),
        rope_theta=m.get("rope.freq_base", float, DEFAULT_ROPE_BASE),
        rope_scaling=_scaling(m),
        max_position_embeddings=m.require("context_length", int),
        tie_word_embeddings="output.weight" not in infos,
        attention_bias="blk.0.attn_q.bias" in infos,
        mlp_bias="blk.0.ffn_gate.bias" in infos,
        attention_window=m.get("attention.sliding_window", int, 0) or None,  # llama.cpp writes 0 for none
    )
    config.check(str(path))
    return config


def apply_divisors(path: Path, config: ModelConfig, divisors: list[float]) -> ModelConfig:
    """With the rope_freqs of the file, which divide each frequency: how GGUF stores llama3 scaling."""
    if config.rope_scaling is not None:
        what = f"tensor {ROPE_FACTORS!r} together with llama.rope.scaling.type"
        raise UnsupportedError(f"{path}: {what} is not implemented")
    if all(v == 1 for v in divisors):
        return config
    scaled = dataclasses.replace(config, rope_scaling=from_divisors(divisors, str(path)))
    scaled.check(str(path))
    return scaled


class _Metadata:
    """Typed access to keys of the llama architecture."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self._values = path, values
        architecture = values.get("general.architecture")
        if architecture != "llama":
            raise UnsupportedError(f"{path}: general.architecture={architecture!r:.100} is not implemented; 'llama' is")

    def get(self, key: str, kind: type, absent: Any = None) -> Any:
        """Value of llama.<key>, or `absent`; ConfigError if its type is another."""
        value = self._values.get(f"llama.{key}")
        if value is None:
            return absent
        if type(value) is not kind:
            raise ConfigError(f"{self.path}: llama.{key}={value!r:.100}: must be of type {kind.__name__}")
        return _shortest(value) if isinstance(value, float) else value

    def require(self, key: str, kind: type) -> Any:
        value = self.get(key, kind)
        if value is None:
            raise ConfigError(f"{self.path}: key 'llama.{key}' is missing, and no default is invented for it")
        return value

    def expect(self, key: str, wanted: Any, meaning: str) -> None:
        """UnsupportedError unless the key is absent or says what is known otherwise."""
        found = self.get(key, type(wanted), wanted)
        if found != wanted:
            what = f"llama.{key}={found!r:.100} differs from {meaning}, {wanted!r}"
            raise UnsupportedError(f"{self.path}: {what}, which is not implemented")

    def check_keys(self) -> None:
        """Every key of the architecture must be one that is read, and the file the whole model."""
        if (parts := self._values.get("split.count", 1)) != 1:
            what = f"split.count={parts!r:.100}: the file is one part of a model"
            raise UnsupportedError(f"{self.path}: {what}; merge the parts with llama-gguf-split --merge")
        keys = {k.removeprefix("llama.") for k in self._values if k.startswith("llama.")}
        if odd := sorted(keys - KNOWN_KEYS):
            what = f"key {'llama.' + odd[0]!r:.100} is unknown"
            raise ConfigError(f"{self.path}: {what}; it may change the model, so it is not ignored")
        if experts := self.get("expert_count", int, 0):
            raise UnsupportedError(
                f"{self.path}: llama.expert_count={experts}: mixtures of experts are not implemented"
            )
        self.expect("tensor_data_layout", PERMUTED, "the layout that is read")

    def count_tokens(self) -> int:
        tokens = self._values.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens:
            raise ConfigError(f"{self.path}: key 'tokenizer.ggml.tokens' is missing or empty")
        return len(tokens)


def _shortest(value: float) -> float:
    """The number that was written: of those that round to this binary32 value, the one with the fewest digits.

    So 1e-05 is the same model whether it comes from a GGUF file or from a config.json.
    """
    with np.errstate(all="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


def _head_dim(m: _Metadata, hidden: int, heads: int) -> int:
    head_dim = m.get("attention.key_length", int)
    if head_dim is None:
        if hidden % heads:
            what = f"llama.embedding_length={hidden} is not a multiple of llama.attention.head_count={heads}"
            raise ConfigError(f"{m.path}: {what}, and there is no llama.attention.key_length")
        head_dim = hidden // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        m.expect(key, head_dim, "the head dimension")
    return int(head_dim)


def _scaling(m: _Metadata) -> RopeScaling | None:
    kind = m.get("rope.scaling.type", str, "linear")  # absent means linear, by a factor that may be absent too
    factor = m.get("rope.scaling.factor", float, m.get("rope.scale_linear", float))
    m.expect("rope.scaling.attn_factor", 1.0, "the only value that is read")  # a factor on yarn's own, not in its place
    if kind == "none" or (kind == "linear" and factor in (None, 0.0, 1.0)):
        return None
    if kind == "linear":
        return make_scaling("linear", {"factor": factor}, str(m.path))
    if kind != "yarn":
        what = f"llama.rope.scaling.type={kind!r:.100} is not implemented"
        raise UnsupportedError(f"{m.path}: {what}; 'none', 'linear' and 'yarn' are")
    numbers = {
        "factor": m.require("rope.scaling.factor", float),
        "original_max_position_embeddings": m.require("rope.scaling.original_context_length", int),
        **{ours: m.get(key, float) for key, ours in YARN_KEYS.items() if m.get(key, float) is not None},
    }
    return make_scaling("yarn", numbers, str(m.path))
