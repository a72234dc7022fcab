"""What a model is: every field changes bytes of the output and is digested. Parsed strictly: nothing is guessed, nothing ignored in silence.

Knows the Hugging Face names of the Llama family; GGUF metadata is turned into the same names by convert/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from exactlm.errors import ConfigError, UnsupportedError
from exactlm.models.rope_scaling import RopeScaling, parse_rope

LIMIT = 32768  # the overflow proofs of spec/numerics.md stop at this reduction length
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
# Keys of config.json that do not touch the forward pass.
BOOKKEEPING = frozenset(
    "_name_or_path _attn_implementation architectures attention_dropout auto_map dtype torch_dtype transformers_version transformers.js_config "
    "use_cache initializer_range pad_token_id is_llama_config rope_interleaved output_attentions output_hidden_states return_dict "
    "chunk_size_feed_forward id2label label2id problem_type is_encoder_decoder is_decoder tokenizer_class finetuning_task model_name "
    "unsloth_version unsloth_fixed bos_token_id eos_token_id layer_types mlp_dropout hidden_dropout resid_pdrop".split()
)
# Keys that may stand there only with the value that leaves the Llama forward pass as it is.
ONLY = {
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1, 1.0, None),
    "quantization_config": (None,),
    "use_sliding_window": (False, None),
    "use_mrope": (False, None),
    "head_dim_override": (None,),
    "logit_scale": (None, 1, 1.0),
    "embedding_multiplier": (None, 1, 1.0),
    "attention_multiplier": (None,),
    "residual_multiplier": (None, 1, 1.0),
    "no_rope_layers": (None,),
    "rope_interleave": (False, None),
}
READ = frozenset(
    "model_type vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size rms_norm_eps "
    "rope_theta rope_scaling rope_parameters max_position_embeddings tie_word_embeddings attention_bias mlp_bias sliding_window hidden_act".split()
)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family, how its weights are stored, and the kind of its KV cache.

    num_tokens: ids the tokenizer has; embedding rows beyond are padding. attention_window: tokens a position sees, itself included; None for all.
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
            raise ConfigError(f"{file}: key {odd[0]!r} is {'missing' if odd[0] in names else 'unknown'}")
        scaling = value["rope_scaling"]
        config = cls(**{**value, "rope_scaling": None if scaling is None else RopeScaling.from_dict(scaling, file)})
        config.check(file)
        return config

    @classmethod
    def from_huggingface(cls, value: Mapping[str, Any], file: str) -> ModelConfig:
        """From a Hugging Face config.json. ConfigError for a missing or unknown key, UnsupportedError for another architecture."""
        kind = _model_type(value, file)
        for key, allowed in ONLY.items():
            if key in value and value[key] not in allowed:
                raise UnsupportedError(f"{file}: {key}={value[key]!r} is not implemented")
        known = READ | BOOKKEEPING | ONLY.keys()
        for key in sorted(value.keys() - known):
            if value[key] not in (None, False):
                raise ConfigError(f"{file}: key {key!r} (value {value[key]!r:.80}) is unknown; it may change the model, so it is not ignored")
        if value.get("hidden_act") != "silu":
            raise UnsupportedError(f"{file}: hidden_act={value.get('hidden_act')!r} is not implemented; only 'silu' is")
        heads, hidden = _int(value, "num_attention_heads", file), _int(value, "hidden_size", file)
        theta, scaling = parse_rope(value, file)
        vocab = _int(value, "vocab_size", file)
        config = cls(
            model_type=kind,
            vocab_size=vocab,
            num_tokens=vocab,
            hidden_size=hidden,
            num_layers=_int(value, "num_hidden_layers", file),
            num_heads=heads,
            num_kv_heads=heads if value.get("num_key_value_heads") is None else _int(value, "num_key_value_heads", file),
            head_dim=hidden // heads if value.get("head_dim") is None else _int(value, "head_dim", file),
            intermediate_size=_int(value, "intermediate_size", file),
            rms_norm_eps=_float(value, "rms_norm_eps", file),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=_int(value, "max_position_embeddings", file),
            tie_word_embeddings=_bool(value, "tie_word_embeddings", file, False),
            attention_bias=_bool(value, "attention_bias", file, False),
            mlp_bias=_bool(value, "mlp_bias", file, False),
            attention_window=_window(value, kind, file),
        )
        config.check(file)
        return config

    def check(self, file: str) -> None:
        """ConfigError naming the first value that is out of range."""
        for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "max_position_embeddings", "vocab_size"):
            _require(_is_int(getattr(self, name), 1), file, name, getattr(self, name), "a whole number from 1 up")
        _require(_is_int(self.num_tokens, 1) and self.num_tokens <= self.vocab_size, file, "num_tokens", self.num_tokens, "1 to vocab_size")
        _require(self.vocab_size <= 1 << 24, file, "vocab_size", self.vocab_size, "at most 2^24")
        _require(self.head_dim <= 256 and self.head_dim % 2 == 0, file, "head_dim", self.head_dim, "even and at most 256")
        _require(self.num_heads % self.num_kv_heads == 0, file, "num_kv_heads", self.num_kv_heads, f"a divisor of num_heads={self.num_heads}")
        for name, size in (("hidden_size", self.hidden_size), ("intermediate_size", self.intermediate_size), ("num_heads * head_dim", self.num_heads * self.head_dim)):
            _require(size <= LIMIT, file, name, size, f"at most {LIMIT}: the proofs of exact sums stop there")
        _require(self.num_layers <= 4096, file, "num_layers", self.num_layers, "at most 4096")
        _require(self.max_position_embeddings <= 1 << 24, file, "max_position_embeddings", self.max_position_embeddings, "at most 2^24")
        for name in ("rms_norm_eps", "rope_theta"):
            number = getattr(self, name)
            _require(_is_number(number) and 0 < number < 1e12, file, name, number, "a positive number")
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            _require(isinstance(getattr(self, name), bool), file, name, getattr(self, name), "true or false")
        divisors = self.rope_scaling.divisors if self.rope_scaling is not None else None
        _require(divisors is None or len(divisors) == self.head_dim // 2, file, "rope divisors", divisors, f"{self.head_dim // 2} numbers")
        window = self.attention_window
        _require(window is None or _is_int(window, 1), file, "attention_window", window, "a number of tokens from 1 up, or null")
        _require(self.model_type in ARCHITECTURES, file, "model_type", self.model_type, " or ".join(ARCHITECTURES))
        _require(self.precision in ("fp16", "int8"), file, "precision", self.precision, "fp16 or int8")
        _require(self.kv_cache in ("int16", "int8"), file, "kv_cache", self.kv_cache, "int16 or int8")


def _model_type(value: Mapping[str, Any], file: str) -> str:
    architectures = value.get("architectures")
    kind = value.get("model_type")
    if kind is None:
        raise ConfigError(f"{file}: key 'model_type' is missing")
    if kind not in ARCHITECTURES:
        raise UnsupportedError(f"{file}: model_type={kind!r} is not implemented; these are: {', '.join(ARCHITECTURES)}")
    if architectures is not None and architectures != [ARCHITECTURES[kind]]:
        raise UnsupportedError(f"{file}: architectures={architectures!r} is not implemented; {kind} means {ARCHITECTURES[kind]}")
    return str(kind)


def _window(value: Mapping[str, Any], kind: str, file: str) -> int | None:
    if kind != "mistral":
        if value.get("sliding_window") is not None:
            raise UnsupportedError(f"{file}: sliding_window={value['sliding_window']!r} is not part of {kind}")
        return None
    if "sliding_window" not in value:
        raise ConfigError(f"{file}: key 'sliding_window' is missing; a mistral model says it, or null for none")
    return None if value["sliding_window"] is None else _int(value, "sliding_window", file)


def _require(ok: bool, file: str, key: str, value: object, wanted: str) -> None:
    if not ok:
        raise ConfigError(f"{file}: {key}={value!r}: must be {wanted}")


def _is_int(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and abs(value) != float("inf")


def _int(value: Mapping[str, Any], key: str, file: str) -> int:
    if key not in value:
        raise ConfigError(f"{file}: key {key!r} is missing")
    _require(_is_int(value[key], 1), file, key, value[key], "a whole number from 1 up")
    return int(value[key])


def _float(value: Mapping[str, Any], key: str, file: str) -> float:
    if key not in value:
        raise ConfigError(f"{file}: key {key!r} is missing, and no default is invented for it")
    _require(_is_number(value[key]), file, key, value[key], "a number")
    return float(value[key])


def _bool(value: Mapping[str, Any], key: str, file: str, absent: bool) -> bool:
    found = value.get(key, absent)
    _require(isinstance(found, bool), file, key, found, "true or false")
    return bool(found)
