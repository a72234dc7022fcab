"""config.json of Hugging Face checkpoints, read strictly: nothing is guessed, nothing ignored in silence.

Knows the names that the Llama family uses there, in every transformers version. Does not know tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exactlm.errors import ConfigError, UnsupportedError
from exactlm.models.config import ModelConfig
from exactlm.models.rope_scaling import is_number, parse_rope

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
# Published checkpoints leave these out, and the configuration classes of transformers themselves say what that means.
# Sizes, rms_norm_eps, hidden_act and sliding_window are never assumed.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_theta": 10000.0,  # Llama 2
        "num_key_value_heads": None,  # one for each query head: Llama 1
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "mistral": {"rope_theta": 10000.0, "tie_word_embeddings": False},
}
_READ = """
    attention_bias head_dim hidden_act hidden_size intermediate_size layer_types max_position_embeddings mlp_bias
    model_type num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_parameters rope_scaling
    rope_theta sliding_window tie_word_embeddings vocab_size
"""
# Keys that do not touch the forward pass: records, training, and settings of generation that tokenizer and engine read.
_BOOKKEEPING = """
    _attn_implementation _commit_hash _name_or_path architectures attention_dropout bos_token_id
    chunk_size_feed_forward dtype eos_token_id finetuning_task id2label initializer_range is_llama_config label2id
    max_sequence_length mlp_dropout model_name output_attentions output_hidden_states pad_token_id problem_type
    return_dict task_specific_params tokenizer_class torch_dtype torchscript transformers.js_config
    transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache
"""
# Keys that may stand there only with the value that leaves the Llama forward pass as it is.
ONLY: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "auto_map": (None,),  # code of the checkpoint's own decides what it computes
    "embedding_multiplier": (None, 1, 1.0),
    "is_decoder": (False, True, None),
    "is_encoder_decoder": (False, None),
    "logit_scale": (None, 1, 1.0),
    "no_rope_layers": (None, []),
    "partial_rotary_factor": (1, 1.0, None),
    "pretraining_tp": (1, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "residual_multiplier": (None, 1, 1.0),
    "rope_interleave": (False, None),
    "rope_interleaved": (False, None),
    "tie_encoder_decoder": (False, None),
    "use_mrope": (False, None),
    "use_sliding_window": (False, None),
}
KNOWN = frozenset(_READ.split()) | frozenset(_BOOKKEEPING.split()) | ONLY.keys()


def parse_config(value: Mapping[str, Any], file: str) -> ModelConfig:
    """The model that a config.json describes.

    ConfigError names a missing, unknown or bad value, UnsupportedError what is not implemented.
    """
    kind = _model_type(value, file)
    _check_keys(value, kind, file)
    theta, scaling = parse_rope(value, file, CLASS_DEFAULTS[kind]["rope_theta"])
    value = {**CLASS_DEFAULTS[kind], **value}
    heads, hidden = _int(value, "num_attention_heads", file), _int(value, "hidden_size", file)
    vocab = _int(value, "vocab_size", file)
    window = _window(value, kind, file)
    config = ModelConfig(
        model_type=kind,
        vocab_size=vocab,
        num_tokens=vocab,
        hidden_size=hidden,
        num_layers=_int(value, "num_hidden_layers", file),
        num_heads=heads,
        num_kv_heads=_int_or(value, "num_key_value_heads", heads, file),
        head_dim=_head_dim(value, hidden, heads, file),
        intermediate_size=_int(value, "intermediate_size", file),
        rms_norm_eps=_float(value, "rms_norm_eps", file),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=_int(value, "max_position_embeddings", file),
        tie_word_embeddings=_bool(value, "tie_word_embeddings", file),
        attention_bias=_bool(value, "attention_bias", file) if kind == "llama" else False,
        mlp_bias=_bool(value, "mlp_bias", file) if kind == "llama" else False,
        attention_window=window,
    )
    config.check(file)
    return config


def _model_type(value: Mapping[str, Any], file: str) -> str:
    kind, architectures = value.get("model_type"), value.get("architectures")
    if kind is None:
        raise ConfigError(f"{file}: key 'model_type' is missing")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"{file}: model_type={kind!r:.100} is not implemented; these are: {known}")
    if architectures is not None and architectures != [ARCHITECTURES[kind]]:
        means = f"{kind} means {ARCHITECTURES[kind]}"
        raise UnsupportedError(f"{file}: architectures={architectures!r:.100} is not implemented; {means}")
    return kind


def _check_keys(value: Mapping[str, Any], kind: str, file: str) -> None:
    """Every key must be one that is read, or known to leave the forward pass alone."""
    for key, allowed in ONLY.items():
        if key in value and value[key] not in allowed:
            raise UnsupportedError(f"{file}: {key}={value[key]!r:.100} is not implemented")
    for key in sorted(value.keys() - KNOWN):
        if value[key] is not None:
            what = f"key {key!r:.100} (value {value[key]!r:.100}) is unknown"
            raise ConfigError(f"{file}: {what}; it may change the model, so it is not ignored")
    if value.get("hidden_act") != "silu":
        act = value.get("hidden_act")
        raise UnsupportedError(f"{file}: hidden_act={act!r:.100} is not implemented; only 'silu' is")
    for key in ("attention_bias", "mlp_bias"):
        if kind == "mistral" and value.get(key) not in (None, False):
            raise UnsupportedError(f"{file}: {key}={value[key]!r:.100} is not part of mistral")


def _window(value: Mapping[str, Any], kind: str, file: str) -> int | None:
    """Tokens a position sees; None for all."""
    found = value.get("sliding_window")
    if kind == "llama" and found is not None:
        raise UnsupportedError(f"{file}: sliding_window={found!r:.100} is not part of llama")
    if kind == "mistral" and "sliding_window" not in value:
        raise ConfigError(f"{file}: key 'sliding_window' is missing; a mistral model says it, or null for none")
    window = None if found is None else _int(value, "sliding_window", file)
    uniform = "full_attention" if window is None else "sliding_attention"
    kinds = value.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or any(k != uniform for k in kinds)):
        raise UnsupportedError(f"{file}: layer_types={kinds!r:.100} is not implemented; every layer is {uniform} here")
    return window


def _head_dim(value: Mapping[str, Any], hidden: int, heads: int, file: str) -> int:
    if value.get("head_dim") is not None:
        return _int(value, "head_dim", file)
    if hidden % heads:
        what = f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}"
        raise ConfigError(f"{file}: {what}, and there is no head_dim")
    return hidden // heads


def _require(value: Mapping[str, Any], key: str, file: str) -> Any:
    if key not in value:
        raise ConfigError(f"{file}: key {key!r} is missing, and no default is invented for it")
    return value[key]


def _int(value: Mapping[str, Any], key: str, file: str) -> int:
    found = _require(value, key, file)
    if type(found) is not int or not 1 <= found < 1 << 31:
        raise ConfigError(f"{file}: {key}={found!r:.100}: must be a whole number from 1 up, below 2^31")
    return found


def _int_or(value: Mapping[str, Any], key: str, if_null: int, file: str) -> int:
    return if_null if _require(value, key, file) is None else _int(value, key, file)


def _float(value: Mapping[str, Any], key: str, file: str) -> float:
    found = _require(value, key, file)
    if not is_number(found):
        raise ConfigError(f"{file}: {key}={found!r:.100}: must be a number")
    return float(found)


def _bool(value: Mapping[str, Any], key: str, file: str) -> bool:
    found = _require(value, key, file)
    if not isinstance(found, bool):
        raise ConfigError(f"{file}: {key}={found!r:.100}: must be true or false")
    return found
