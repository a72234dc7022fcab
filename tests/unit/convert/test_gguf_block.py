"""Every block type of GGUF gives, bit for bit, what its formula says, worked out here one value at a time."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from exactlm import convert_to_deterministic
from exactlm.convert.gguf_header import read_header
from exactlm.convert.gguf_source import SUPPORTED, GgufTensor
from exactlm.errors import CheckpointError
from exactlm.format.reader import open_model
from exactlm.numerics.layout import unpack_w16
from exactlm.numerics.weight import quantise_w16
from tests.tiny import draw, make_config
from tests.unit.convert.gguf_file import gguf_tensors, write_gguf

f32 = np.float32
Values = Iterator[np.float32]
HALVES = (0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x2E66, 0x3C00, 0x7BFF, 0xBC00, 0xFBFF, 0x8001)


def half(raw: bytes, at: int) -> np.float32:
    return f32(struct.unpack_from("<e", raw, at)[0])


def q4_0(raw: bytes) -> Values:
    for i in range(32):
        nibble = raw[2 + i] & 15 if i < 16 else raw[2 + i - 16] >> 4
        yield half(raw, 0) * f32(nibble - 8)


def q4_1(raw: bytes) -> Values:
    for i in range(32):
        nibble = raw[4 + i] & 15 if i < 16 else raw[4 + i - 16] >> 4
        yield half(raw, 0) * f32(nibble) + half(raw, 2)


def five_bits(raw: bytes, at: int, i: int) -> int:
    high = struct.unpack_from("<I", raw, at)[0] >> i & 1
    nibble = raw[at + 4 + i] & 15 if i < 16 else raw[at + 4 + i - 16] >> 4
    return int(nibble | high << 4)


def q5_0(raw: bytes) -> Values:
    for i in range(32):
        yield half(raw, 0) * f32(five_bits(raw, 2, i) - 16)


def q5_1(raw: bytes) -> Values:
    for i in range(32):
        yield half(raw, 0) * f32(five_bits(raw, 4, i)) + half(raw, 2)


def q8_0(raw: bytes) -> Values:
    for i in range(32):
        yield half(raw, 0) * f32(struct.unpack_from("b", raw, 2 + i)[0])


def q2_k(raw: bytes) -> Values:
    d, least = half(raw, 80), half(raw, 82)
    for i in range(256):
        scale = raw[i // 16]
        code = raw[16 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        yield (d * f32(scale & 15)) * f32(code) - least * f32(scale >> 4)


def q3_k(raw: bytes) -> Values:
    packed, d = raw[96:108], half(raw, 108)
    for i in range(256):
        group = i // 16
        low = packed[group] & 15 if group < 8 else packed[group - 8] >> 4
        scale = low | (packed[8 + group % 4] >> (group // 4 * 2) & 3) << 4
        code = raw[32 + i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        high = raw[i % 32] >> (i // 32) & 1
        yield (d * f32(scale - 32)) * f32(code - (0 if high else 4))


def six_bits(packed: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of a group of 32 in the 12 bytes that Q4_K and Q5_K share."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def q4_k(raw: bytes) -> Values:
    for i in range(256):
        scale, least = six_bits(raw[4:16], i // 32)
        code = raw[16 + i // 64 * 32 + i % 32] >> (i % 64 // 32 * 4) & 15
        yield (half(raw, 0) * f32(scale)) * f32(code) - half(raw, 2) * f32(least)


def q5_k(raw: bytes) -> Values:
    for i in range(256):
        scale, least = six_bits(raw[4:16], i // 32)
        low = raw[48 + i // 64 * 32 + i % 32] >> (i % 64 // 32 * 4) & 15
        code = low | (raw[16 + i % 32] >> (i // 32) & 1) << 4
        yield (half(raw, 0) * f32(scale)) * f32(code) - half(raw, 2) * f32(least)


def q6_k(raw: bytes) -> Values:
    for i in range(256):
        part, lane = i // 128, i % 128
        low = raw[part * 64 + lane % 64] >> (lane // 64 * 4) & 15
        high = raw[128 + part * 32 + lane % 32] >> (lane // 32 * 2) & 3
        scale = struct.unpack_from("b", raw, 192 + i // 16)[0]
        yield (half(raw, 208) * f32(scale)) * f32((low | high << 4) - 32)


# type -> formula of one block, positions of its binary16 numbers
BLOCKS: dict[str, tuple[Callable[[bytes], Values], tuple[int, ...]]] = {
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q8_0": (q8_0, (0,)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


def write_tensor(path: Path, kind: str, rows: np.ndarray) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", rows, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def open_tensor(path: Path) -> GgufTensor:
    header, data = read_header(path)
    return GgufTensor(path, data, header.tensors["token_embd.weight"], "model.embed_tokens.weight", None)


def make_blocks(kind: str, seed: int) -> np.ndarray:
    """Rows of two random blocks, one row for each special value of the binary16 numbers (zero, subnormal, largest)."""
    _, places = BLOCKS[kind]
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    rows = np.random.Generator(np.random.Philox(seed)).integers(0, 256, (len(HALVES), 2, size), dtype=np.uint8)
    for row, bits in enumerate(HALVES):
        for order, place in enumerate(places):
            value = bits if order == 0 else HALVES[(row * 3 + 1) % len(HALVES)]
            rows[row, :, place : place + 2] = np.frombuffer(struct.pack("<H", value), np.uint8)
    return rows.reshape(len(HALVES), -1)


@pytest.mark.parametrize("kind", BLOCKS)
def test_read_equals_the_formula_of_the_block(kind: str, tmp_path: Path) -> None:
    formula, _ = BLOCKS[kind]
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    rows = make_blocks(kind, seed=len(kind) + size)
    write_tensor(tmp_path / "a.gguf", kind, rows)

    found = open_tensor(tmp_path / "a.gguf").read()

    raw = rows.reshape(len(HALVES), -1, size)
    expected = np.array([[v for block in row for v in formula(block.tobytes())] for row in raw], np.float32)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.view(np.uint32) & 0x7FFFFFFF, expected.view(np.uint32) & 0x7FFFFFFF)
    np.testing.assert_array_equal(found, expected)  # signs, but for the sign of a zero
    assert np.unique(found).size > 50


def test_every_quantised_type_that_is_read_is_tested_here() -> None:
    assert set(BLOCKS) == set(SUPPORTED) - {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_float_types_are_exact_for_every_pattern_of_16_bits(kind: str, tmp_path: Path) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    if kind == "F16":
        expected, stored = patterns.view(np.float16).astype(np.float32), patterns.view(np.float16)
    else:
        expected = (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)
        stored = expected if kind == "F32" else patterns.view(np.uint8)
    write_tensor(tmp_path / "a.gguf", kind, stored)

    found = open_tensor(tmp_path / "a.gguf").read()

    keep = ~np.isnan(expected)  # the bits of a NaN carry nothing: conversion refuses it
    np.testing.assert_array_equal(found.view(np.uint32)[keep], expected.view(np.uint32)[keep])
    assert np.isnan(found[~keep]).all()


def test_a_large_tensor_read_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_blocks("Q4_K", seed=5)
    write_tensor(tmp_path / "a.gguf", "Q4_K", rows)
    whole = open_tensor(tmp_path / "a.gguf").read()
    monkeypatch.setattr("exactlm.convert.gguf_source.BLOCK_VALUES", 3 * 512)
    np.testing.assert_array_equal(open_tensor(tmp_path / "a.gguf").read(), whole)


def write_model(path: Path, kind: str, rows: np.ndarray) -> Path:
    """A whole model whose feed-forward size is 256, so that ffn_down of layer 1 can be made of K-quant blocks."""
    tensors = gguf_tensors(make_config(), "base")
    for layer in (0, 1):
        for part, shape in (("gate", (256, 64)), ("up", (256, 64)), ("down", (64, 256))):
            tensors[f"blk.{layer}.ffn_{part}.weight"] = draw(f"{layer}{part}", shape, 0.1)
    del tensors["blk.1.ffn_down.weight"]

    def add(writer: GGUFWriter) -> None:
        writer.add_tensor("blk.1.ffn_down.weight", rows, raw_dtype=GGMLQuantizationType[kind])

    return write_gguf(path, keys={"llama.feed_forward_length": 256}, tensors=tensors, change=add)


def finite_rows(kind: str) -> np.ndarray:
    """64 rows of 256 random values in blocks of a type."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows = np.random.Generator(np.random.Philox(9)).integers(0, 256, (64, 256 // block, size), dtype=np.uint8)
    for place in BLOCKS[kind][1]:
        rows[:, :, place : place + 2] = np.frombuffer(struct.pack("<e", 0.01), np.uint8)
    return rows.reshape(64, -1)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_model_with_blocks_of_every_type_converts(kind: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", kind, finite_rows(kind))
    directory = open_model(convert_to_deterministic(path).save_pretrained(tmp_path / "out"))
    codes, scales = (np.asarray(directory.tensors[f"layers.1.down.{part}"]) for part in ("codes", "scales"))
    header, data = read_header(path)
    source = GgufTensor(path, data, header.tensors["blk.1.ffn_down.weight"], "", None).read()
    stored, expected = unpack_w16(codes, scales, 64, 256), quantise_w16(source)
    np.testing.assert_array_equal(stored.codes, expected.codes)
    np.testing.assert_array_equal(stored.scales, expected.scales)
    assert directory.manifest["report"]["tensors"]["layers.1.down"]["sources"].popitem()[1] == kind


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_number_that_is_not_finite_stops_the_conversion(kind: str, bits: int, tmp_path: Path) -> None:
    for place in BLOCKS[kind][1]:
        rows = finite_rows(kind)
        begin = rows.shape[1] - GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1] + place
        rows[63, begin : begin + 2] = np.frombuffer(struct.pack("<H", bits), np.uint8)
        path = write_model(tmp_path / f"{place}.gguf", kind, rows)
        with pytest.raises(CheckpointError, match=r"tensor 'blk\.1\.ffn_down\.weight' holds a NaN or infinity"):
            convert_to_deterministic(path).save_pretrained(tmp_path / "out")
        assert not (tmp_path / "out").exists()
