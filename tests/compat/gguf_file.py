"""Tiny GGUF files written by the gguf package from the tensors of tests/tiny.py. Knows llama.cpp's names and row order, not exactlm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from tests import tiny

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    path: Path,
    variant: str = "base",
    kind: GGMLQuantizationType | None = None,
    more: Mapping[str, Any] | None = None,
    permuted: bool = True,
) -> dict[str, np.ndarray]:
    """Write a variant as llama.cpp's converter would; return its tensors under their Hugging Face names and in their order.

    kind: quantisation of the matrices whose rows are whole blocks. more: keys of llama.* to add, or to leave out where None.
    """
    config = tiny.make_config(variant)
    writer = GGUFWriter(path, "llama")
    for key, value in (_metadata(config) | dict(more or {})).items():
        _add(writer, f"llama.{key}", value)
    writer.add_token_list([f"token {i}" for i in range(tiny.NUM_TOKENS)])
    tensors = dict(tiny.make_tensors(config, variant))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in tensors.items():
        count = heads.get(name.split(".")[-2]) if permuted else None
        stored = values if count is None else permute(values, count)
        if kind is not None and values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(gguf_name(name), quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in OTHERS:
        return f"{OTHERS[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row order of llama.cpp: in each head, row i of the first half is followed by row i of the second."""
    half = len(rows) // heads // 2
    order = [head * 2 * half + i + side * half for head in range(heads) for i in range(half) for side in (0, 1)]
    return np.ascontiguousarray(rows[order])


def _metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": config["rope_theta"],
        "vocab_size": config["vocab_size"],
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)
