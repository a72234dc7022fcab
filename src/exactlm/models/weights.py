"""The tensors of a decoder: their names in our model file, the checkpoint tensors they come from, and how they become
kernels' objects.

Knows the Llama family. Does not know how codes are made (convert/) or multiplied (kernels/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exactlm.errors import FormatError
from exactlm.kernels.api import F32, Kernels, Linear
from exactlm.models.config import ModelConfig
from exactlm.numerics.layout import MULTIPLIER_ALIGN, TILE
from exactlm.numerics.weight import GROUP

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [n, k]: the rows of its sources, one after another."""

    name: str
    n: int
    k: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Vector:
    """A gain or bias [n]: its sources one after another, in fp32."""

    name: str
    n: int
    sources: tuple[str, ...]


def plan(config: ModelConfig) -> Iterator[Matrix | Vector]:
    """Every tensor of the model in file order. Together the sources are all tensors a checkpoint must have."""
    c = config
    d, q, kv = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    yield Matrix("embed", c.vocab_size, d, ("model.embed_tokens.weight",))
    for i in range(c.num_layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        qkv = tuple(f"{attention}.{p}_proj" for p in "qkv")
        yield Vector(f"{ours}.attention_norm", d, (f"{theirs}.input_layernorm.weight",))
        yield Matrix(f"{ours}.qkv", q + 2 * kv, d, tuple(f"{p}.weight" for p in qkv))
        yield Matrix(f"{ours}.output", d, q, (f"{attention}.o_proj.weight",))
        yield Vector(f"{ours}.ffn_norm", d, (f"{theirs}.post_attention_layernorm.weight",))
        yield Matrix(
            f"{ours}.gate_up", 2 * c.intermediate_size, d, (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")
        )
        yield Matrix(f"{ours}.down", d, c.intermediate_size, (f"{mlp}.down_proj.weight",))
        if c.attention_bias:
            yield Vector(f"{ours}.qkv.bias", q + 2 * kv, tuple(f"{p}.bias" for p in qkv))
            yield Vector(f"{ours}.output.bias", d, (f"{attention}.o_proj.bias",))
        if c.mlp_bias:
            yield Vector(
                f"{ours}.gate_up.bias", 2 * c.intermediate_size, (f"{mlp}.gate_proj.bias", f"{mlp}.up_proj.bias")
            )
            yield Vector(f"{ours}.down.bias", d, (f"{mlp}.down_proj.bias",))
    yield Vector("final_norm", d, ("model.norm.weight",))
    if not c.tie_word_embeddings:
        yield Matrix("head", c.vocab_size, d, ("lm_head.weight",))


def stored_shapes(item: Matrix | Vector, precision: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dtype, shape) of what the model file holds for one tensor: spec/format.md clause 3."""
    if isinstance(item, Vector):
        return {item.name: ("F32", (-(-item.n // TILE) * TILE,))}
    tiles, groups = -(-item.n // TILE), -(-item.k // GROUP)
    scales = {f"{item.name}.scales": ("F32", (tiles * TILE,))}
    if precision == "fp16":
        return {f"{item.name}.codes": ("U8", (tiles, (item.k + 3) // 4, 2, TILE, 4)), **scales}
    codes = {f"{item.name}.codes": ("U8", (tiles, groups * GROUP // 4, TILE, 4))}
    return {
        **codes,
        f"{item.name}.multipliers": ("U16", (-(-tiles * groups * TILE // MULTIPLIER_ALIGN) * MULTIPLIER_ALIGN,)),
        **scales,
    }


@dataclass(frozen=True)
class Layer:
    """Kernel objects and vectors of one transformer layer."""

    attention_norm: F32
    qkv: Linear
    qkv_bias: F32 | None
    output: Linear
    output_bias: F32 | None
    ffn_norm: F32
    gate_up: Linear
    gate_up_bias: F32 | None
    down: Linear
    down_bias: F32 | None


@dataclass(frozen=True)
class DecoderWeights:
    embed: Linear
    layers: tuple[Layer, ...]
    final_norm: F32
    head: Linear


def _load_matrix(item: Matrix, arrays: Arrays, kernels: Kernels) -> Linear:
    codes = np.asarray(arrays[f"{item.name}.codes"], np.uint8).reshape(-1)
    scales = np.asarray(arrays[f"{item.name}.scales"], np.float32)
    multipliers = None
    if f"{item.name}.multipliers" in arrays:
        count = -(-item.n // TILE) * -(-item.k // GROUP) * TILE
        multipliers = np.asarray(arrays[f"{item.name}.multipliers"], np.uint16)[:count]
    try:
        return kernels.make_linear(codes, multipliers, scales, item.n, item.k)
    except ValueError as error:
        raise FormatError(
            f"model.safetensors: tensor {item.name!r}: {error}; `exactlm info` tells what was changed"
        ) from None


def load_weights(arrays: Arrays, config: ModelConfig, kernels: Kernels) -> DecoderWeights:
    """Kernel objects over the arrays of a model file; FormatError if one is absent, unexpected or has another shape."""
    loaded: dict[str, Linear | F32] = {}
    expected: set[str] = set()
    for item in plan(config):
        shapes = stored_shapes(item, config.precision)
        expected |= shapes.keys()
        for name, (_, shape) in shapes.items():
            if name not in arrays:
                raise FormatError(f"model.safetensors: tensor {name!r} is missing; convert the checkpoint again")
            if arrays[name].shape != shape:
                raise FormatError(
                    f"model.safetensors: tensor {name!r} has shape {list(arrays[name].shape)}, "
                    f"config.json asks for {list(shape)}"
                )
        if isinstance(item, Vector):
            loaded[item.name] = np.asarray(arrays[item.name], np.float32)[: item.n]
            continue
        loaded[item.name] = _load_matrix(item, arrays, kernels)
    if extra := sorted(arrays.keys() - expected):
        raise FormatError(f"model.safetensors: tensor {extra[0]!r} is not part of the model that config.json describes")

    def layer(i: int) -> Layer:
        at = f"layers.{i}"
        return Layer(
            attention_norm=loaded[f"{at}.attention_norm"],
            qkv=loaded[f"{at}.qkv"],
            qkv_bias=loaded.get(f"{at}.qkv.bias"),
            output=loaded[f"{at}.output"],
            output_bias=loaded.get(f"{at}.output.bias"),
            ffn_norm=loaded[f"{at}.ffn_norm"],
            gate_up=loaded[f"{at}.gate_up"],
            gate_up_bias=loaded.get(f"{at}.gate_up.bias"),
            down=loaded[f"{at}.down"],
            down_bias=loaded.get(f"{at}.down.bias"),
        )

    return DecoderWeights(
        embed=loaded["embed"],
        layers=tuple(layer(i) for i in range(config.num_layers)),
        final_norm=np.asarray(loaded["final_norm"]),
        head=loaded.get("head", loaded["embed"]),
    )
