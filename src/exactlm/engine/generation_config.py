"""Hugging Face's generation_config, in our terms: what is the same is translated, what differs is refused by name.

Follows transformers 5: a key that is absent or null has its default there (top_k 50, 20 new tokens), and without
do_sample nothing that shapes the sampling has any effect. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping

from exactlm.errors import RequestError

# Taken over below. min_p is cut before top_k and top_p here, after them there: with two of them the sets can differ.
_TRANSLATED = frozenset({
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "max_length",
    "num_return_sequences", "num_beams", "eos_token_id", "stop_strings",
})  # fmt: skip
# They cannot change which tokens come: speed, caches, reporting, other kinds of model, bookkeeping, and what acts on
# several beams only.
_HARMLESS = frozenset({
    "transformers_version", "_from_model_config", "_commit_hash", "use_cache", "cache_implementation", "cache_config",
    "max_cache_len", "return_legacy_cache", "pad_token_id", "bos_token_id", "decoder_start_token_id",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
    "target_lookbehind", "speculation_type", "use_mtp", "compile_config", "disable_compile",
    "continuous_batching_config", "low_memory", "prefill_chunk_size", "renormalize_logits", "early_stopping",
    "length_penalty",
})  # fmt: skip
# Not available here; the values at which they do nothing. None does nothing for any.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_time": (),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "bad_words_ids": ([],),
    "force_words_ids": ([],),
    "constraints": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "remove_invalid_values": (False,),
    "token_healing": (False,),
    "watermarking_config": (),
    "assistant_ensemble_weight": (),
}
_NEUTRAL_SAMPLING: dict[str, tuple[object, ...]] = {
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
}
_DEFAULT_LENGTH = 20


def sampling_fields(config: Mapping[str, object]) -> dict[str, object]:
    """Arguments of `SamplingParams` for the dictionary of a generation_config.json or of GenerationConfig.to_dict().

    The values' ranges are left for SamplingParams to check. RequestError names a key that is unknown, or asks for what
    is not available.
    """
    if not isinstance(config, Mapping):
        raise RequestError(f"a generation config is a dictionary, not a {type(config).__name__}; use its to_dict()")
    given = {key: value for key, value in config.items() if value is not None}
    is_sampled = given.get("do_sample", False)
    if not isinstance(is_sampled, bool):
        raise RequestError(f"do_sample={is_sampled!r:.60}: use true or false")
    _refuse_others(given, is_sampled)
    fields: dict[str, object] = {
        "n": given.get("num_return_sequences", 1),
        "temperature": 0.0,
        "repetition_penalty": given.get("repetition_penalty", 1.0),
        "max_tokens": _read_length(given),
        "stop": given.get("stop_strings", ()),
        "stop_token_ids": _read_ends(given),
    }
    return {**fields, **_read_sampling(given)} if is_sampled else fields


def _refuse_others(given: Mapping[str, object], is_sampled: bool) -> None:
    for key, value in given.items():
        if key in _TRANSLATED or key in _HARMLESS or (key in _NEUTRAL_SAMPLING and not is_sampled):
            continue
        if key not in _NEUTRAL and key not in _NEUTRAL_SAMPLING:
            raise RequestError(f"{key}={value!r:.60}: unknown in a generation config; remove it")
        neutral = _NEUTRAL.get(key, _NEUTRAL_SAMPLING.get(key, ()))
        if not any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral):
            raise RequestError(f"{key}={value!r:.60}: not available here; remove it{_tell(neutral)}")
    if given.get("num_beams", 1) != 1 or isinstance(given.get("num_beams"), bool):
        raise RequestError(f"num_beams={given['num_beams']!r:.60}: beam search is not available; use 1")
    if not is_sampled and given.get("num_return_sequences", 1) != 1:
        raise RequestError("num_return_sequences: without do_sample all answers are the same one; use 1")


def _tell(neutral: tuple[object, ...]) -> str:
    return f" or use {neutral[0]!r}" if neutral else ""


def _read_sampling(given: Mapping[str, object]) -> dict[str, object]:
    temperature = given.get("temperature", 1.0)
    if temperature == 0:
        raise RequestError("temperature=0 with do_sample: set do_sample to false for the most likely tokens")
    return {
        "temperature": temperature,
        "top_k": given.get("top_k", 50),
        "top_p": given.get("top_p", 1.0),
        "min_p": given.get("min_p", 0.0),
    }


def _read_length(given: Mapping[str, object]) -> object:
    """The number of tokens to generate. transformers counts the prompt in max_length, unless it is its default."""
    if "max_new_tokens" in given:
        return given["max_new_tokens"]
    total = given.get("max_length", _DEFAULT_LENGTH)
    if total == _DEFAULT_LENGTH:
        return _DEFAULT_LENGTH
    raise RequestError(
        f"max_length={total!r:.60} counts the prompt too, whose length is not known here: "
        "give max_new_tokens instead, or max_tokens of SamplingParams"
    )


def _read_ends(given: Mapping[str, object]) -> list[object]:
    ends = given.get("eos_token_id", [])
    return list(ends) if isinstance(ends, (list, tuple)) else [ends]
