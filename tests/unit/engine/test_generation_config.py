"""Hugging Face's generation_config: translated as transformers would apply it, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import RequestError

# GenerationConfig().to_dict() of transformers 5.24, and the values that generate() then fills in.
KEYS = (
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "max_time", "stop_strings",
    "do_sample", "num_beams", "use_mtp", "use_cache", "cache_implementation", "cache_config", "max_cache_len",
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids",
    "renormalize_logits", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
    "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "token_healing",
    "guidance_scale", "watermarking_config", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id", "bos_token_id", "eos_token_id",
    "encoder_no_repeat_ngram_size", "decoder_start_token_id", "is_assistant", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
    "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "assistant_ensemble_weight", "speculation_type", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "penalty_alpha", "dola_layers", "diversity_penalty",
    "num_beam_groups", "constraints", "force_words_ids", "prefill_chunk_size", "_from_model_config",
    "transformers_version",
)  # fmt: skip
FILLED: dict[str, Any] = {
    "max_length": 20, "min_length": 0, "do_sample": False, "use_cache": True, "early_stopping": False, "num_beams": 1,
    "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None, "num_return_sequences": 1,
    "output_scores": False, "return_dict_in_generate": False, "forced_bos_token_id": None, "forced_eos_token_id": None,
    "remove_invalid_values": False, "exponential_decay_length_penalty": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "encoder_repetition_penalty": 1.0,
    "num_assistant_tokens": 20, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10, "target_lookbehind": 10, "num_beam_groups": 1, "diversity_penalty": 0.0,
}  # fmt: skip
GREEDY = SamplingParams(max_tokens=20)


def read(**config: Any) -> SamplingParams:
    return SamplingParams.from_generation_config(config)


def test_defaults_are_greedy_and_twenty_tokens() -> None:
    assert read() == GREEDY
    assert read(**{**dict.fromkeys(KEYS), "transformers_version": "5.24.0"}) == GREEDY
    assert read(**FILLED) == GREEDY


def test_sampling_has_the_defaults_of_transformers() -> None:
    assert read(do_sample=True) == SamplingParams(temperature=1.0, top_k=50, max_tokens=20)
    assert read(**{**FILLED, "do_sample": True}) == SamplingParams(temperature=1.0, top_k=50, max_tokens=20)
    assert read(do_sample=True, top_k=0).top_k == 0


def test_published_configs() -> None:
    """The generation_config.json of Llama 3.1 and of Qwen2.5, as published."""
    llama = '{"bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128008, 128009], "temperature": 0.6,'
    llama += ' "top_p": 0.9, "transformers_version": "4.42.3"}'
    assert read(**json.loads(llama), max_new_tokens=5) == SamplingParams(
        temperature=0.6, top_p=0.9, top_k=50, max_tokens=5, stop_token_ids=(128001, 128008, 128009)
    )
    qwen = '{"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],'
    qwen += (
        ' "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0"}'
    )
    assert read(**json.loads(qwen), num_return_sequences=3, stop_strings="\n", min_p=0.1) == SamplingParams(
        n=3, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, min_p=0.1, stop=("\n",), max_tokens=20,
        stop_token_ids=(151645, 151643),
    )  # fmt: skip


def test_without_do_sample_nothing_shapes_the_sampling() -> None:
    shaped = {"temperature": 0.7, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "typical_p": 0.3, "eta_cutoff": 0.1}
    assert read(**shaped) == GREEDY
    assert read(**shaped, do_sample=False) == GREEDY
    assert read(do_sample=False, repetition_penalty=1.2).repetition_penalty == 1.2  # this one acts always


def test_lengths() -> None:
    assert read(max_new_tokens=7).max_tokens == 7
    assert read(max_new_tokens=7, max_length=4096).max_tokens == 7
    assert read(max_length=20).max_tokens == 20
    with pytest.raises(RequestError, match=r"max_length=4096 counts the prompt too.*give max_new_tokens"):
        read(max_length=4096)


def test_one_end_or_several() -> None:
    assert read(eos_token_id=2).stop_token_ids == (2,)
    assert read(eos_token_id=[2, 0]).stop_token_ids == (2, 0)
    assert read(eos_token_id=None).stop_token_ids == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_beams", 4), ("num_beams", 0), ("num_beams", True), ("num_beam_groups", 2), ("diversity_penalty", 0.5),
        ("no_repeat_ngram_size", 3), ("bad_words_ids", [[5]]), ("force_words_ids", [[5]]), ("constraints", ["x"]),
        ("forced_bos_token_id", 1), ("forced_eos_token_id", 0), ("suppress_tokens", [5]),
        ("sequence_bias", [[[5], 1.0]]),
        ("begin_suppress_tokens", [5]), ("min_new_tokens", 3), ("min_length", 3), ("max_time", 1.0),
        ("penalty_alpha", 0.6), ("guidance_scale", 1.5), ("encoder_repetition_penalty", 1.2), ("dola_layers", "low"),
        ("encoder_no_repeat_ngram_size", 2), ("exponential_decay_length_penalty", [1, 1.1]), ("token_healing", True),
        ("watermarking_config", {"bias": 2.0}), ("remove_invalid_values", True), ("remove_invalid_values", 0),
        ("assistant_ensemble_weight", 0.5), ("forced_decoder_ids", [[1, 2]]), ("do_sample", 1), ("do_sample", "true"),
        ("max_tokens", 5), ("repetition_penalties", 1.1), ("num_return_sequences", 2), ("temprature", 0.7),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{key}"):
        read(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("typical_p", 0.9), ("epsilon_cutoff", 3e-4), ("eta_cutoff", 1e-3), ("top_h", 0.5), ("temperature", 0.0)],
)
def test_what_would_change_the_sampling_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{key}="):
        read(do_sample=True, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "hot"), ("temperature", -1.0), ("top_k", 1.5), ("top_p", 2.0), ("min_p", True),
        ("num_return_sequences", 0), ("max_new_tokens", "7"), ("eos_token_id", "</s>"), ("stop_strings", [""]),
        ("stop_strings", 3), ("repetition_penalty", 0.0),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(RequestError):
        read(do_sample=True, **{key: value})


def test_not_a_dictionary() -> None:
    with pytest.raises(RequestError, match=r"a dictionary, not a list; use its to_dict\(\)"):
        SamplingParams.from_generation_config([("do_sample", True)])  # type: ignore[arg-type]
