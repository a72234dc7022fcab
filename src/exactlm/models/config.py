"""What a model is: every field changes bytes of the output and is digested.

Knows our own config.json. Other projects' configurations are turned into this one by hf_config.py and convert/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from exactlm.errors import ConfigError
from exactlm.models.rope_scaling import RopeScaling, is_number

# The overflow proofs of spec/numerics.md stop at this reduction length and this vocabulary.
MAX_REDUCTION = 32768
MAX_VOCABULARY = 1 << 21
MODEL_TYPES = ("llama", "mistral")
# Largest sizes that are accepted: above every model of these families, below what could wrap or exhaust memory.
MAX_SIZES = {
    "hidden_size": MAX_REDUCTION,
    "intermediate_size": MAX_REDUCTION,
    "num_layers": 256,
    "num_heads": 1024,
    "num_kv_heads": 1024,
    "head_dim": 256,
    "max_position_embeddings": 1 << 24,
    "vocab_size": MAX_VOCABULARY,
}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family, how its weights are stored, and the kind of its KV cache.

    num_tokens: ids the tokenizer has; embedding rows beyond are padding. attention_window: tokens a position sees,
    itself included; None for all.
    """

    model_type: str
    vocab_size: int
    num_tokens: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    attention_window: int | None
    precision: str = "fp16"
    kv_cache: str = "int16"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for config.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], file: str = "config.json") -> ModelConfig:
        """The inverse of to_dict; ConfigError names an unknown or missing key, or a value out of range."""
        names = {f.name for f in fields(cls)}
        if odd := sorted(names ^ set(value)):
            raise ConfigError(f"{file}: key {odd[0]!r:.100} is {'missing' if odd[0] in names else 'unknown'}")
        scaling = value["rope_scaling"]
        config = cls(**{**value, "rope_scaling": None if scaling is None else RopeScaling.from_dict(scaling, file)})
        config.check(file)
        return config

    def check(self, file: str) -> None:
        """ConfigError naming the first value that is out of range."""
        for name, most in MAX_SIZES.items():
            _require(
                _is_int(getattr(self, name), most), file, name, getattr(self, name), f"a whole number, 1 to {most}"
            )
        queries = self.num_heads * self.head_dim
        _require(queries <= MAX_REDUCTION, file, "num_heads * head_dim", queries, f"at most {MAX_REDUCTION}")
        _require(_is_int(self.num_tokens, self.vocab_size), file, "num_tokens", self.num_tokens, "1 to vocab_size")
        _require(self.head_dim % 2 == 0, file, "head_dim", self.head_dim, "even")
        divides = self.num_heads % self.num_kv_heads == 0
        _require(divides, file, "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads={self.num_heads}")
        for name, low, high in (("rms_norm_eps", 0.0, 1.0), ("rope_theta", 1.0, 1e12)):
            number = getattr(self, name)
            _require(is_number(number) and low < number < high, file, name, number, f"between {low:g} and {high:g}")
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            _require(isinstance(getattr(self, name), bool), file, name, getattr(self, name), "true or false")
        window = self.attention_window
        _require(window is None or _is_int(window, 1 << 24), file, "attention_window", window, "1 to 2^24, or null")
        for name, choices in (
            ("model_type", MODEL_TYPES),
            ("precision", ("fp16", "int8")),
            ("kv_cache", ("int16", "int8")),
        ):
            _require(getattr(self, name) in choices, file, name, getattr(self, name), " or ".join(choices))
        self._check_rope(file)

    def _check_rope(self, file: str) -> None:
        if (s := self.rope_scaling) is None:
            return
        half = self.head_dim // 2
        _require(s.divisors is None or len(s.divisors) == half, file, "rope divisors", s.divisors, f"{half} numbers")
        _require(s.kind != "dynamic" or half > 1, file, "head_dim", self.head_dim, "above 2 for dynamic rope scaling")


def _require(ok: bool, file: str, key: str, value: object, wanted: str) -> None:
    if not ok:
        raise ConfigError(f"{file}: {key}={value!r:.100}: must be {wanted}")


def _is_int(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most
