"""Tiny GGUF files with the weights of tests.tiny, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests.tiny import make_config, make_tensors, make_tokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Change = Callable[[GGUFWriter], None]


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permute(w: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of query and key rows."""
    return w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def gguf_tensors(config: Mapping[str, Any], variant: str) -> dict[str, np.ndarray]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found = {}
    for name, values in make_tensors(dict(config), variant):
        renamed = gguf_name(name)
        part = renamed.split(".")[-2]
        found[renamed] = permute(values, heads[part]) if part in heads else values
    return found


def write_gguf(
    path: Path,
    variant: str = "base",
    kind: str = "F32",
    *,
    keys: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    change: Change | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """keys: more metadata, by full name; without: keys left out; change: may add tensors; `kind`: of the matrices."""
    config = make_config(variant)
    writer = GGUFWriter(path, "llama")
    for key, value in {**_metadata(config), **(keys or {})}.items():
        if key not in without:
            _add(writer, key, value)
    for name, values in (gguf_tensors(config, variant) if tensors is None else tensors).items():
        stored = kind if values.ndim == 2 and (kind == "F16" or values.shape[1] % 32 == 0) else "F32"
        data = values if stored == "F32" else quantize(values, GGMLQuantizationType[stored])
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[stored])
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    by_id = {**{i: t for t, i in tokenizer["model"]["vocab"].items()}, **special}
    return {
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.vocab_size": config["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [by_id[i] for i in sorted(by_id)],
        "tokenizer.ggml.token_type": [3 if i in special else 1 for i in sorted(by_id)],
        "tokenizer.ggml.merges": tokenizer["model"]["merges"],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
        add[type(value)](key, value)
