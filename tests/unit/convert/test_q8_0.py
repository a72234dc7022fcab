"""Q8_0 becomes int8 without a change: spec/numerics.md 3.3."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from exactlm import convert_to_deterministic
from exactlm.convert.gguf_header import read_header
from exactlm.convert.gguf_source import GgufTensor
from exactlm.errors import CheckpointError
from exactlm.format.reader import open_model
from exactlm.models.config import ModelConfig
from exactlm.models.weights import Matrix, plan
from exactlm.numerics.layout import unpack_w8
from exactlm.numerics.weight import w8_from_q8_0
from tests.tiny import make_config
from tests.unit.convert.gguf_file import gguf_tensors, write_gguf

ROWS, GROUPS = 16, 2  # of the tensor that the tests replace: blk.1.attn_k, 32 x 64


def blocks_of(scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Raw Q8_0 bytes [N, G*34] of scales [N, G] and codes [N, G*32]."""
    n, groups = scales.shape
    raw = np.empty((n, groups, 34), np.uint8)
    raw[:, :, :2] = scales.astype("<f2").reshape(n, groups, 1).view(np.uint8)
    raw[:, :, 2:] = codes.reshape(n, groups, 32).view(np.uint8)
    return raw.reshape(n, -1)


def random_codes(n: int, seed: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(seed)).integers(-128, 128, (n, 64)).astype(np.int8)


def write_with(path: Path, name: str, raw: np.ndarray) -> Path:
    tensors = gguf_tensors(make_config(), "base")
    del tensors[name]

    def add(writer: GGUFWriter) -> None:
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.Q8_0)

    return write_gguf(path, kind="Q8_0", tensors=tensors, change=add)


def stored_rows(model: Path, name: str) -> np.ndarray:
    """Dequantised weights of a matrix of the converted model."""
    directory = open_model(model)
    items = {item.name: item for item in plan(ModelConfig.from_dict(directory.config)) if isinstance(item, Matrix)}
    item, a = items[name], directory.tensors
    arrays = (a[f"{name}.codes"], a[f"{name}.multipliers"], a[f"{name}.scales"])
    return unpack_w8(*arrays, item.n, item.k).dequantise()[:, : item.k]  # type: ignore[arg-type]


def source_rows(path: Path, name: str, heads: int | None) -> np.ndarray:
    header, data = read_header(path)
    return GgufTensor(path, data, header.tensors[name], name, heads).read()


def test_weights_of_the_model_are_those_of_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", kind="Q8_0")
    converter = convert_to_deterministic(path, precision="int8")
    model = converter.save_pretrained(tmp_path / "out")
    for layer in (0, 1):
        at = f"blk.{layer}"
        qkv = [source_rows(path, f"{at}.attn_{p}.weight", h) for p, h in (("q", 8), ("k", 2), ("v", None))]
        np.testing.assert_array_equal(stored_rows(model, f"layers.{layer}.qkv"), np.concatenate(qkv))
        gates = [source_rows(path, f"{at}.ffn_{p}.weight", None) for p in ("gate", "up")]
        np.testing.assert_array_equal(stored_rows(model, f"layers.{layer}.gate_up"), np.concatenate(gates))
    np.testing.assert_array_equal(stored_rows(model, "embed"), source_rows(path, "token_embd.weight", None))
    report = converter.report["tensors"]["layers.0.qkv"]
    assert (report["exact"], report["relative_error"]) == (True, 0.0)
    assert set(report["sources"].values()) == {"Q8_0"}
    assert not converter.report["tensors"]["layers.0.down"]["exact"]  # stored as F32 in the file: requantised


def test_codes_and_scales_are_kept(tmp_path: Path) -> None:
    codes = random_codes(32, seed=1)
    codes[:, 0] = -128
    scales = np.full((32, 2), 0.01, np.float16)
    scales[:, 1] = np.array([0.0, 2.0**-24, 0.02, 1.0], np.float16).repeat(8)
    path = write_with(tmp_path / "m.gguf", "blk.1.attn_v.weight", blocks_of(scales, codes))
    converter = convert_to_deterministic(path, precision="int8")
    model = converter.save_pretrained(tmp_path / "out")
    directory = open_model(model)
    arrays = [np.asarray(directory.tensors[f"layers.1.qkv.{part}"]) for part in ("codes", "multipliers", "scales")]
    stored = unpack_w8(arrays[0], arrays[1], arrays[2], 192, 64)
    np.testing.assert_array_equal(stored.codes[160:], codes)
    kept = stored.multipliers[160:].astype(np.float64) * stored.scales[160:, None]
    exact = np.abs(kept - scales.astype(np.float64)) == 0
    assert exact[:8].all()  # a group of zeros beside 0.01
    assert exact[16:24].all()


def test_rows_with_a_wide_range_of_scales_are_counted_and_nearest(tmp_path: Path) -> None:
    codes = random_codes(32, seed=2)
    scales = np.full((32, 2), 0.01, np.float16)
    wide = [3, 17, 31]
    scales[wide, 0], scales[wide, 1] = np.float16(60000), np.float16(3 * 2.0**-24)
    path = write_with(tmp_path / "m.gguf", "blk.1.attn_v.weight", blocks_of(scales, codes))
    converter = convert_to_deterministic(path, precision="int8")
    model = converter.save_pretrained(tmp_path / "out")
    report = converter.report["tensors"]["layers.1.qkv"]
    assert report["rows_with_rounded_scales"] == len(wide)
    assert report["exact"] is False
    assert 0 < report["relative_error"] < 1e-4
    rows, source = stored_rows(model, "layers.1.qkv")[160:], source_rows(path, "blk.1.attn_v.weight", None)
    others = [i for i in range(32) if i not in wide]
    np.testing.assert_array_equal(rows[others], source[others])
    np.testing.assert_array_equal(rows[wide, :32], source[wide, :32])  # the large scale has few bits, and is kept
    assert (rows[wide, 32:] == 0).all()


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00, 0xBC00, 0x8001])
def test_bad_scales_are_refused_by_name(bits: int, tmp_path: Path) -> None:
    scales = np.full((32, 2), 0.01, np.float16)
    scales[5, 1] = np.array([bits], np.uint16).view(np.float16)[0]
    path = write_with(tmp_path / "m.gguf", "blk.1.attn_v.weight", blocks_of(scales, random_codes(32, 3)))
    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor 'blk\.1\.attn_v\.weight'.*scale is negative, NaN"):
        convert_to_deterministic(path, precision="int8").save_pretrained(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]


def test_minus_zero_is_a_scale_of_zero(tmp_path: Path) -> None:
    scales = np.full((32, 2), 0.01, np.float16)
    scales[:, 1] = np.float16(-0.0)
    path = write_with(tmp_path / "m.gguf", "blk.1.attn_v.weight", blocks_of(scales, random_codes(32, 4)))
    model = convert_to_deterministic(path, precision="int8").save_pretrained(tmp_path / "out")
    assert (stored_rows(model, "layers.1.qkv")[160:, 32:] == 0).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("bits", [0x7C00, 0x7E00])
def test_a_scale_that_is_not_finite_stops_the_conversion(kind: str, bits: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", kind=kind)
    header, _ = read_header(path)
    begin = header.tensors["blk.0.ffn_up.weight"].begin
    raw = bytearray(path.read_bytes())
    raw[begin : begin + 2] = bits.to_bytes(2, "little")
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"tensor 'blk\.0\.ffn_up\.weight' holds a NaN or infinity"):
        convert_to_deterministic(path).save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_scale_there_is_can_be_kept() -> None:
    d = np.arange(0x7C00, dtype=np.uint16).view(np.float16)[:, None]
    kept, num_rounded = w8_from_q8_0(np.full((len(d), 32), -128, np.int8), d)
    assert num_rounded == 0
    np.testing.assert_array_equal(kept.dequantise()[:, 0], d[:, 0].astype(np.float32) * np.float32(-128))
    assert (kept.multipliers[1:, 0] % 2 == 1).all()  # the largest r of spec/numerics.md 3.3
