"""Files that the safetensors package writes are read to the same bits; it reads the files of tests.tiny."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from exactlm.convert.checkpoint import open_checkpoint
from exactlm.format.tensorfile import TensorFile
from tests import tiny

TYPES = ("u1", "i1", "u2", "i2", "i4", "i8", "f2", "f4")


def test_every_type_and_odd_shapes(tmp_path: Path) -> None:
    raw = np.random.Generator(np.random.Philox(3)).integers(0, 120, (3, 5, 8), dtype=np.uint8)
    arrays = {f"of {code}": raw.view(code) for code in TYPES}
    arrays |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 4), np.float32), 'ünïcode "x"': raw[0, 0]}
    save_file(arrays, tmp_path / "a.safetensors", metadata={"format": "np"})

    file = TensorFile(tmp_path / "a.safetensors")

    assert set(file.names()) == set(arrays)
    for name, array in arrays.items():
        found = file.array(name)
        assert (file.shape(name), found.shape, found.tobytes()) == (array.shape, array.shape, array.tobytes()), name
        assert not found.flags.writeable


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_checkpoint_rewritten_by_the_package_is_the_same(dtype: str, tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "a", "bias", dtype)
    before = {name: tensor.read().tobytes() for name, tensor in open_checkpoint(folder).tensors.items()}
    arrays = load_file(folder / "model.safetensors")
    assert {array.dtype for array in arrays.values()} == {np.dtype(dtype)}
    save_file(arrays, folder / "model.safetensors")

    after = {name: tensor.read().tobytes() for name, tensor in open_checkpoint(folder).tensors.items()}

    assert after == before
    assert before == {n: a.astype(np.float32).tobytes() for n, a in arrays.items()}


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "a", dtype="bfloat16")
    exact = dict(tiny.make_tensors(tiny.make_config()))
    tensors = open_checkpoint(folder).tensors
    with safe_open(folder / "model.safetensors", "np") as file:
        assert {file.get_slice(name).get_dtype() for name in tensors} == {"BF16"}
    for name, tensor in tensors.items():
        bits = tensor.read().view(np.uint32)
        assert not (bits & 0xFFFF).any(), name
        assert np.abs(bits.astype(np.int64) - exact[name].view(np.uint32)).max() <= 0x8000, name


def test_shards_give_what_one_file_gives(tmp_path: Path) -> None:
    one = open_checkpoint(tiny.write_checkpoint(tmp_path / "one"))
    two = open_checkpoint(tiny.write_checkpoint(tmp_path / "two", sharded=True))
    assert len([name for name in two.files if name.endswith(".safetensors")]) == 2
    assert {n: t.read().tobytes() for n, t in one.tensors.items()} == {
        n: t.read().tobytes() for n, t in two.tensors.items()
    }
