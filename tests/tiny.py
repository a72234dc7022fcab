"""Tiny random Hugging Face checkpoints, the same bytes everywhere: weights from Philox counters, a tokenizer by rule.

Knows the file formats of a checkpoint; does not know exactlm. Random weights give flat logits, which show a
difference of one ulp.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SPECIAL = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>")
BEGIN, END, PAD = 495, 496, 499
NUM_TOKENS = 500  # the rows from here to vocab_size are padding, as in many real checkpoints
LONG_WORDS = (("Ġt", "he"), ("in", "g"), ("an", "d"))
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 517,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 172,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": BEGIN,
    "eos_token_id": END,
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# What each variant changes in config.json. The RoPE-scaled ones have an original window of 64 tokens.
VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "bias": {"attention_bias": True, "mlp_bias": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, **LLAMA3}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}},
    "window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    "tied": {"tie_word_embeddings": True},
    "tied_rows": {},
    # 33 tiles of outputs by 3 groups of inputs: the one shape whose multipliers are no whole number of 64 bytes.
    "odd": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 75},
    "heads63": {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 3},
}


def write_checkpoint(
    directory: str | Path, variant: str = "base", dtype: str = "float32", sharded: bool = False
) -> Path:
    """Write a checkpoint of one of VARIANTS, its weights rounded to a dtype of DTYPES; return the directory.

    sharded: two files and an index. "tied_rows" has a head whose rows 250 to 499 repeat rows 0 to 249: exact ties at
    every step.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    config = make_config(variant, dtype)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", make_tokenizer())
    write_json(folder / "tokenizer_config.json", make_tokenizer_config())
    tensors = {name: _encode(values, dtype) for name, values in make_tensors(config, variant)}
    names = sorted(tensors)
    if not sharded:
        _write_tensors(folder / "model.safetensors", tensors)
        return folder
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, chosen in shards.items():
        _write_tensors(folder / file, {name: tensors[name] for name in chosen})
    total = sum(len(entry["data"]) for entry in tensors.values())
    weight_map = {name: file for file, chosen in shards.items() for name in chosen}
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
    return folder


def make_config(variant: str = "base", dtype: str = "float32") -> dict[str, Any]:
    """config.json of a variant."""
    config = {**BASE, **VARIANTS[variant], "torch_dtype": dtype}
    if config["model_type"] == "mistral":
        del config["attention_bias"], config["mlp_bias"]
    return config


def make_tensors(config: dict[str, Any], variant: str = "base") -> Iterator[tuple[str, F32]]:
    """Name and float32 values of every tensor; a name has the same values in all variants that agree on its shape."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    attention, mlp = config.get("attention_bias", False), config.get("mlp_bias", False)
    yield "model.embed_tokens.weight", draw("model.embed_tokens.weight", (config["vocab_size"], hidden), 0.5)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns, has_bias in (
            ("self_attn.q_proj", queries, hidden, attention),
            ("self_attn.k_proj", keys, hidden, attention),
            ("self_attn.v_proj", keys, hidden, attention),
            ("self_attn.o_proj", hidden, queries, attention),
            ("mlp.gate_proj", inner, hidden, mlp),
            ("mlp.up_proj", inner, hidden, mlp),
            ("mlp.down_proj", hidden, inner, mlp),
        ):
            yield at + name + ".weight", draw(at + name, (rows, columns), columns**-0.5)
            if has_bias:
                yield at + name + ".bias", draw(at + name + ".bias", (rows,), 0.25)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name + ".weight", 1 + draw(at + name, (hidden,), 0.25)
    yield "model.norm.weight", 1 + draw("model.norm.weight", (hidden,), 0.25)
    if not config["tie_word_embeddings"]:
        head = draw("lm_head.weight", (config["vocab_size"], hidden), 0.25)
        if variant == "tied_rows":
            head[250:500] = head[:250]
        yield "lm_head.weight", head


def draw(name: str, shape: tuple[int, ...], deviation: float) -> F32:
    """Uniform float32 values of the given standard deviation, from the raw 64-bit counter stream keyed by the name."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    raw = np.random.Philox(key=key).random_raw(int(np.prod(shape)))
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1  # [-1, 1)
    values: F32 = (unit * (deviation * 3**0.5)).astype(np.float32)
    return values.reshape(shape)


def make_tokenizer() -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE: 256 bytes, pairs of letters, three longer words and five control tokens."""
    vowels, consonants = "aeiou", "bcdfghjklmnpqrstvwxyz"
    merges = [("Ġ", letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    merges += [*product(consonants, vowels), *product(vowels, consonants), *LONG_WORDS]
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    added = [_added_token(len(vocab) + i, content) for i, content in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {**model, "vocab": vocab, "merges": [f"{left} {right}" for left, right in merges]},
    }


def make_tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json, with a small chat template."""
    template = (
        "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    named = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "pad_token": SPECIAL[4]}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **named, "chat_template": template}


def byte_symbols() -> list[str]:
    """The character that stands for each byte value in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_json(path: Path, value: object) -> None:
    """Write canonical JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _added_token(index: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content, **flags}


def _encode(values: F32, dtype: str) -> dict[str, Any]:
    if dtype == "bfloat16":  # round to nearest even on the bits; no value here is near overflow
        bits = values.view(np.uint32)
        stored = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    else:
        stored = values.astype({"float32": "<f4", "float16": "<f2"}[dtype])
    return {"dtype": DTYPES[dtype], "shape": list(values.shape), "data": stored.tobytes()}


def _write_tensors(path: Path, tensors: dict[str, dict[str, Any]]) -> None:
    """Write a safetensors file by hand: the library's own writer changes its interface between versions."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, entry in tensors.items():
        begin, end = end, end + len(entry["data"])
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(entry["data"] for entry in tensors.values()))
