"""config.json of real models is read as what they are; what could change a model is never ignored."""

import json
from typing import Any

import pytest

from exactlm.errors import ConfigError, ExactlmError, UnsupportedError
from exactlm.models.config import ModelConfig
from exactlm.models.hf_config import parse_config
from exactlm.models.rope_scaling import RopeScaling
from tests.tiny import BASE, VARIANTS, make_config
from tests.unit.models.published_config import PUBLISHED, TRANSFORMERS_5

FILE = "some/config.json"


def llama3(factor: float) -> RopeScaling:
    return RopeScaling("llama3", factor, 8192, low_freq_factor=1.0, high_freq_factor=4.0)


# name -> vocabulary, hidden, layers, heads, KV heads, head_dim, feed-forward, RoPE base, scaling, context, tied, window
REAL: dict[str, tuple[Any, ...]] = {
    "llama-2-7b": (32000, 4096, 32, 32, 32, 128, 11008, 1e4, None, 4096, False, None),
    "llama-3.1-8b": (128256, 4096, 32, 32, 8, 128, 14336, 5e5, llama3(8.0), 131072, False, None),
    "llama-3.2-1b": (128256, 2048, 16, 32, 8, 64, 8192, 5e5, llama3(32.0), 131072, True, None),
    "mistral-7b-v0.1": (32000, 4096, 32, 32, 8, 128, 14336, 1e4, None, 32768, False, 4096),
    "mistral-7b-v0.3": (32768, 4096, 32, 32, 8, 128, 14336, 1e6, None, 32768, False, None),
    "tinyllama-1.1b": (32000, 2048, 22, 32, 4, 64, 5632, 1e4, None, 2048, False, None),
    "smollm2-135m": (49152, 576, 30, 9, 3, 64, 1536, 1e5, None, 8192, True, None),
    "smollm2-1.7b": (49152, 2048, 24, 32, 32, 64, 8192, 1.3e5, None, 8192, True, None),
}


@pytest.mark.parametrize("texts", [PUBLISHED, TRANSFORMERS_5], ids=["published", "transformers 5"])
@pytest.mark.parametrize("name", REAL)
def test_real_configuration(name: str, texts: dict[str, str]) -> None:
    v, d, n, h, hk, hd, f, theta, scaling, context, tied, window = REAL[name]
    expected = ModelConfig(
        model_type=name.split("-")[0] if name.startswith("mistral") else "llama",
        vocab_size=v,
        num_tokens=v,
        hidden_size=d,
        num_layers=n,
        num_heads=h,
        num_kv_heads=hk,
        head_dim=hd,
        intermediate_size=f,
        rms_norm_eps=1e-5,
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        attention_bias=False,
        mlp_bias=False,
        attention_window=window,
    )
    parsed = parse_config(json.loads(texts[name]), FILE)
    assert parsed == expected
    assert ModelConfig.from_dict(json.loads(json.dumps(parsed.to_dict()))) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_own_form_is_the_inverse(variant: str) -> None:
    parsed = parse_config(make_config(variant), FILE)
    assert ModelConfig.from_dict(json.loads(json.dumps(parsed.to_dict()))) == parsed


def test_head_dim_null_or_absent_is_the_quotient() -> None:
    base = {k: v for k, v in BASE.items() if k != "head_dim"}
    assert parse_config(base, FILE).head_dim == 8
    assert parse_config({**base, "head_dim": None}, FILE).head_dim == 8
    assert parse_config(BASE, FILE).head_dim == 16


def test_num_key_value_heads_null_is_one_for_each_head() -> None:
    assert parse_config({**BASE, "num_key_value_heads": None}, FILE).num_kv_heads == 8
    absent = {k: v for k, v in BASE.items() if k != "num_key_value_heads"}
    assert parse_config(absent, FILE).num_kv_heads == 8
    mistral = {**make_config("window")}
    del mistral["num_key_value_heads"]  # there the class would say 8, whatever the number of heads
    with pytest.raises(ConfigError, match="'num_key_value_heads' is missing"):
        parse_config(mistral, FILE)


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_scaling_under_all_its_names(key: str, place: str) -> None:
    config = {k: v for k, v in BASE.items() if k != "rope_theta"}
    config[place] = {key: "linear", "factor": 2}
    config.update({"rope_theta": 5e4} if place == "rope_scaling" else {})
    if place == "rope_parameters":
        config[place]["rope_theta"] = 5e4
    parsed = parse_config(config, FILE)
    assert (parsed.rope_theta, parsed.rope_scaling) == (5e4, RopeScaling("linear", 2.0))


@pytest.mark.parametrize("scaling", [None, {}, {"type": "default"}, {"rope_type": "default", "rope_theta": None}])
def test_no_scaling(scaling: Any) -> None:
    assert parse_config({**BASE, "rope_scaling": scaling}, FILE).rope_scaling is None


HUGE = int("9" * 4000)
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
BAD_NUMBERS = (0, -1, 1.5, True, "8", [], {}, HUGE, float("nan"))
BAD: dict[str, tuple[dict[str, Any], type[ExactlmError], str]] = {
    "another type": ({"model_type": "qwen2"}, UnsupportedError, "model_type='qwen2'"),
    "type list": ({"model_type": ["llama"]}, UnsupportedError, "model_type=\\['llama'\\]"),
    "type null": ({"model_type": None}, ConfigError, "'model_type' is missing"),
    "architecture": ({"architectures": ["LlamaForSequenceClassification"]}, UnsupportedError, "architectures="),
    "two architectures": ({"architectures": ["LlamaForCausalLM", "X"]}, UnsupportedError, "architectures="),
    "unknown key": ({"attn_logit_softcapping": 50.0}, ConfigError, "'attn_logit_softcapping'"),
    "unknown false": ({"use_rms_norm": False}, ConfigError, "'use_rms_norm'"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, UnsupportedError, "quantization_config"),
    "own code": ({"auto_map": {"AutoModel": "m.M"}}, UnsupportedError, "auto_map"),
    "activation": ({"hidden_act": "gelu"}, UnsupportedError, "'gelu'"),
    "no activation": ({"hidden_act": None}, UnsupportedError, "None"),
    "tp": ({"pretraining_tp": 2}, UnsupportedError, "pretraining_tp=2"),
    "interleaved": ({"rope_interleaved": True}, UnsupportedError, "rope_interleaved"),
    "partial": ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor"),
    "partial inside": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, UnsupportedError, "partial_rotary_factor"),
    "window in llama": ({"sliding_window": 4096}, UnsupportedError, "sliding_window=4096"),
    "layer types": ({"layer_types": ["full_attention", "sliding_attention"]}, UnsupportedError, "layer_types"),
    "head_dim odd": ({"head_dim": 15}, ConfigError, "head_dim=15: must be even"),
    "head_dim 258": ({"head_dim": 258}, ConfigError, "head_dim=258"),
    "no head_dim": ({"head_dim": None, "hidden_size": 66}, ConfigError, "not a multiple"),
    "kv heads": ({"num_key_value_heads": 3}, ConfigError, "a divisor of num_heads=8"),
    "vocabulary": ({"vocab_size": 2**21 + 1}, ConfigError, "vocab_size=2097153"),
    "wide": ({"intermediate_size": 32769}, ConfigError, "intermediate_size=32769"),
    "wide heads": ({"num_attention_heads": 1024, "head_dim": 34}, ConfigError, "num_heads \\* head_dim=34816"),
    "eps 0": ({"rms_norm_eps": 0}, ConfigError, "rms_norm_eps=0"),
    "eps text": ({"rms_norm_eps": "1e-5"}, ConfigError, "rms_norm_eps='1e-5'"),
    "eps infinite": ({"rms_norm_eps": float("inf")}, ConfigError, "rms_norm_eps=inf"),
    "eps huge": ({"rms_norm_eps": HUGE}, ConfigError, "rms_norm_eps=999"),
    "theta 0": ({"rope_theta": 0}, ConfigError, "rope_theta=0"),
    "theta 1": ({"rope_theta": 1}, ConfigError, "rope_theta=1"),
    "theta huge": ({"rope_theta": HUGE}, ConfigError, "rope_theta=999"),
    "two thetas": ({"rope_parameters": {"rope_theta": 5e4}}, ConfigError, "10000.0 and, inside rope_parameters, 5"),
    "tie text": ({"tie_word_embeddings": "true"}, ConfigError, "tie_word_embeddings='true'"),
    "tie null": ({"tie_word_embeddings": None}, ConfigError, "tie_word_embeddings=None"),
    "bias number": ({"attention_bias": 1}, ConfigError, "attention_bias=1"),
    "longrope": ({"rope_scaling": {"type": "longrope", "factor": 4}}, UnsupportedError, "'longrope'"),
    "unknown scaling": ({"rope_scaling": {"rope_type": "magic"}}, UnsupportedError, "'magic'"),
    "scaling list": ({"rope_scaling": {"rope_type": ["linear"], "factor": 2}}, UnsupportedError, "linear"),
    "scaling text": ({"rope_scaling": "linear"}, ConfigError, "must be an object"),
    "no kind": ({"rope_scaling": {"factor": 2}}, ConfigError, "neither 'type' nor 'rope_type'"),
    "two kinds": ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}}, ConfigError, "both type="),
    "no factor": ({"rope_scaling": {"type": "linear"}}, ConfigError, "needs key 'factor'"),
    "factor 0": ({"rope_scaling": {"type": "linear", "factor": 0}}, ConfigError, "factor=0"),
    "factor huge": ({"rope_scaling": {"type": "linear", "factor": HUGE}}, ConfigError, "factor=999"),
    "factor true": ({"rope_scaling": {"type": "linear", "factor": True}}, ConfigError, "factor=True"),
    "odd key": ({"rope_scaling": {"type": "linear", "factor": 2, "beta": 1}}, ConfigError, "does not take key 'beta'"),
    "default with factor": ({"rope_scaling": {"type": "default", "factor": 2}}, ConfigError, "does not take 'factor'"),
    "llama3 without": ({"rope_scaling": {"type": "llama3", "factor": 8}}, ConfigError, "needs key 'low_freq_factor'"),
    "places disagree": (
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"type": "linear", "factor": 4}},
        ConfigError,
        "disagree on 'factor': 2 and 4",
    ),
    "dynamic window": (
        {"rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 64}},
        UnsupportedError,
        "differs from max_position_embeddings",
    ),
    "dynamic head_dim": ({"rope_scaling": {"type": "dynamic", "factor": 2}, "head_dim": 2}, ConfigError, "above 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_configuration_is_refused_by_name(name: str) -> None:
    change, kind, message = BAD[name]
    with pytest.raises(kind, match=message) as caught:
        parse_config({**BASE, **change}, FILE)
    assert str(caught.value).startswith(FILE)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda v: repr(v)[:8])
@pytest.mark.parametrize(
    "key",
    [*SIZES, "num_key_value_heads", "head_dim"],
)
def test_sizes_must_be_whole_numbers_in_range(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        parse_config({**BASE, key: value}, FILE)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "key",
    [*SIZES, "rms_norm_eps", "model_type"],
)
def test_no_default_is_invented(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.* is missing"):
        parse_config({k: v for k, v in BASE.items() if k != key}, FILE)


def test_mistral_says_its_window() -> None:
    config = make_config("window")
    assert parse_config(config, FILE).attention_window == 24
    assert parse_config({**config, "sliding_window": None}, FILE).attention_window is None
    assert parse_config({**config, "layer_types": ["sliding_attention"] * 2}, FILE).attention_window == 24
    del config["sliding_window"]
    with pytest.raises(ConfigError, match="'sliding_window' is missing"):
        parse_config(config, FILE)
    with pytest.raises(UnsupportedError, match="attention_bias=True is not part of mistral"):
        parse_config({**make_config("window"), "attention_bias": True}, FILE)


OWN: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"extra": 1}, "'extra' is unknown"),
    "model_type list": ({"model_type": []}, "model_type=\\[\\]"),
    "precision": ({"precision": "fp4"}, "precision='fp4'"),
    "kv_cache": ({"kv_cache": None}, "kv_cache=None"),
    "tokens": ({"num_tokens": 518}, "num_tokens=518"),
    "layers": ({"num_layers": 10**9}, "num_layers=1000000000"),
    "window": ({"attention_window": 0}, "attention_window=0"),
    "heads float": ({"num_heads": 8.0}, "num_heads=8.0"),
    "scaling number": ({"rope_scaling": 1}, "rope_scaling=1"),
    "scaling empty": ({"rope_scaling": {}}, "rope_scaling={}"),
}


@pytest.mark.parametrize("name", OWN)
def test_own_form_is_checked_too(name: str) -> None:
    change, message = OWN[name]
    good = parse_config(BASE, FILE).to_dict()
    assert ModelConfig.from_dict(good).to_dict() == good
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict({**good, **change}, FILE)


@pytest.mark.parametrize(
    ("values", "message"),
    [([1.0] * 7, "8 numbers"), ([1.0] * 7 + [0], "positive"), ([None] * 8, "positive"), ("a", "pos")],
)
def test_divisors_are_checked(values: Any, message: str) -> None:
    good = parse_config(BASE, FILE).to_dict()
    scaling = {**parse_config(make_config("linear"), FILE).to_dict()["rope_scaling"]}
    scaling.update(kind="divisors", factor=1.0, divisors=[1.0] * 8)
    assert ModelConfig.from_dict({**good, "rope_scaling": scaling}).rope_scaling is not None
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_dict({**good, "rope_scaling": {**scaling, "divisors": values}}, FILE)
