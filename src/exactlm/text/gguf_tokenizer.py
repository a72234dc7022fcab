"""Builds a tokenizer from GGUF metadata (`tokenizer.*`): byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

Receives a plain mapping of keys to Python values; knows nothing of how the file is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from exactlm.errors import TokenizerError, UnsupportedError
from exactlm.text import sentencepiece as sp
from exactlm.text.pretokenizer import PreTokenizer, find_pretokenizer
from exactlm.text.settings import TextSettings, dump_canonical

# Tokens that end a turn in some family; a GGUF file often names only one of a model's several.
_END_TOKENS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>")
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def build_from_gguf(metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """Return (tokenizer.json text, settings, chat template or None) for GGUF `metadata`.

    UnsupportedError names an unknown model or pre-tokenizer; TokenizerError a missing or contradictory key.
    """
    family = _get(metadata, "model", str)
    tokens = _get_list(metadata, "tokens", str)
    if not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is empty; the file holds no vocabulary")
    types = (
        _get_list(metadata, "token_type", int) if "tokenizer.ggml.token_type" in metadata else [sp.NORMAL] * len(tokens)
    )
    if len(types) != len(tokens):
        raise TokenizerError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    types = _correct_types(metadata, tokens, types)
    if family == "gpt2":
        pre = _find_pre(metadata)
        document, adds_bos = _build_bpe(metadata, tokens, types, pre), pre.adds_bos
    elif family == "llama":
        document, adds_bos = _build_spm(metadata, tokens, types), True
    else:
        raise UnsupportedError(
            f"tokenizer.ggml.model = {family!r}: only 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are "
            "implemented; convert from a checkpoint that has a tokenizer.json"
        )
    settings = _make_settings(metadata, tokens, types, adds_bos)
    return dump_canonical(document), settings.to_dict(), _get_optional(metadata, "tokenizer.chat_template", str)


def _get_optional(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    value = metadata.get(key)
    if value is not None and type(value) is not kind:
        raise TokenizerError(f"{key} = {value!r:.60} is a {type(value).__name__}, expected {kind.__name__}")
    return value


def _get(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    value = _get_optional(metadata, f"tokenizer.ggml.{name}", kind)
    if value is None:
        raise TokenizerError(f"tokenizer.ggml.{name} is missing; the file holds no usable tokenizer")
    return value


def _get_list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    key = f"tokenizer.ggml.{name}"
    value: Any = metadata.get(key)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TokenizerError(f"{key} is {'missing' if value is None else type(value).__name__}, expected a list")
    for index, item in enumerate(value):
        if not isinstance(item, kind):
            raise TokenizerError(f"{key}[{index}] = {item!r:.60} is not a {kind.__name__}")
    return list(value)


def _find_pre(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = _get_optional(metadata, "tokenizer.ggml.pre", str)
    if name is None:
        raise UnsupportedError(
            "tokenizer.ggml.pre is missing: the pre-tokenizer of this old GGUF file is unknown, and guessing it can "
            "double the perplexity silently; use a newer GGUF file or the Hugging Face checkpoint"
        )
    return find_pretokenizer(name)


def _correct_types(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> list[int]:
    """Return `types` with padding as UNUSED and every end-of-turn token as CONTROL; files get both wrong."""
    ends = {metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS}
    corrected = list(types)
    for index, token in enumerate(tokens):
        if token == f"[PAD{index}]":
            corrected[index] = sp.UNUSED
        elif index in ends or (types[index] == sp.USER_DEFINED and token in _END_TOKENS):
            corrected[index] = sp.CONTROL
    return corrected


def _build_bpe(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], pre: PreTokenizer
) -> dict[str, Any]:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        repeated = next(token for token_id, token in enumerate(tokens) if vocab[token] != token_id)
        raise TokenizerError(f"tokenizer.ggml.tokens holds {repeated!r} twice")
    merges: list[list[str]] = []
    for index, merge in enumerate(_get_list(metadata, "merges", str)):
        cut = merge.find(" ", 1)
        parts = [merge[:cut], merge[cut + 1 :]]
        if cut < 0 or any(part not in vocab for part in (*parts, "".join(parts))):
            raise TokenizerError(f"tokenizer.ggml.merges[{index}] = {merge!r} does not join two tokens to a third")
        merges.append(parts)
    added = [
        sp.make_added_token(token_id, token, is_special=types[token_id] != sp.USER_DEFINED)
        for token_id, token in enumerate(tokens)
        if types[token_id] in (sp.UNKNOWN, sp.CONTROL, sp.USER_DEFINED)
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": pre.to_json(), "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": pre.ignores_merges, "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def _build_spm(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    prefix = _get_optional(metadata, "tokenizer.ggml.add_space_prefix", bool)
    squeeze = _get_optional(metadata, "tokenizer.ggml.remove_extra_whitespaces", bool)
    if metadata.get("tokenizer.ggml.precompiled_charsmap"):
        raise UnsupportedError(
            "tokenizer.ggml.precompiled_charsmap with tokenizer.ggml.model = 'llama' is not implemented; "
            "convert from the Hugging Face checkpoint"
        )
    normalization = sp.Normalization(adds_space_prefix=prefix is not False, squeezes_spaces=squeeze is True)
    return sp.build_sentencepiece(tokens, _get_list(metadata, "scores", float), types, normalization)


def _make_settings(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], adds_bos: bool
) -> TextSettings:
    bos = _get_id(metadata, "bos_token_id", len(tokens))
    eos = _get_id(metadata, "eos_token_id", len(tokens))
    control = {index for index, kind in enumerate(types) if kind in (sp.CONTROL, sp.UNKNOWN)}
    ends = {value for key in _END_KEYS if (value := _get_id(metadata, key, len(tokens))) is not None}
    ends |= {index for index in control if tokens[index] in _END_TOKENS}
    flag_bos = _get_optional(metadata, "tokenizer.ggml.add_bos_token", bool)
    flag_eos = _get_optional(metadata, "tokenizer.ggml.add_eos_token", bool)
    wants_bos = adds_bos if flag_bos is None else flag_bos
    for wanted, value, name in ((wants_bos, bos, "bos"), (flag_eos, eos, "eos")):
        if wanted and value is None:
            raise TokenizerError(f"a {name} token has to be added but tokenizer.ggml.{name}_token_id is missing")
    return TextSettings(
        bos_token_id=bos,
        eos_token_id=eos,
        eos_token_ids=sorted(ends),
        pad_token_id=_get_id(metadata, "padding_token_id", len(tokens)),
        unk_token_id=_get_id(metadata, "unknown_token_id", len(tokens)),
        prefix_ids=[bos] if wants_bos and bos is not None else [],
        suffix_ids=[eos] if flag_eos and eos is not None else [],
        special_ids=sorted(control),
        unused_ids=[index for index, kind in enumerate(types) if kind == sp.UNUSED],
        named_templates={
            key.removeprefix("tokenizer.chat_template."): str(value)
            for key, value in metadata.items()
            if key.startswith("tokenizer.chat_template.")
        },
    )


def _get_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}"
    value: int | None = _get_optional(metadata, key, int)
    if value is not None and not 0 <= value < num_tokens:
        raise TokenizerError(f"{key} = {value} is outside the vocabulary of {num_tokens} tokens")
    return value
