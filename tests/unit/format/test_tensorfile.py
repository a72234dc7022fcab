"""Damaged and hostile safetensors files: a FormatError that names the place, in little time and memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from exactlm.errors import FormatError
from exactlm.format.tensorfile import HEADER_LIMIT, TensorFile
from tests.unit.convert.limit import open_in_limits


def file_of(header: object, data: int = 0, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data)


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes"),
    "seven bytes": (bytes(7), "has 7 bytes"),
    "length past the file": (file_of({}, length=2**64 - 1), "its header alone needs 18446744073709551623"),
    "length cut": (file_of({"a": entry()}, 24, length=200), "it was cut or is not safetensors"),
    "not JSON": (file_of(b"{]"), "header: cannot be read as JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "header: cannot be read as JSON"),
    "deep": (file_of(b"[" * 200_000), "header: cannot be read as JSON"),
    "long number": (file_of(b'{"a": ' + b"9" * 5000 + b"}"), "header: cannot be read as JSON"),
    "list": (file_of([]), "holds a list"),
    "name twice": (file_of(b'{"a": 1, "a": 2}'), "'a' stands twice"),
    "key twice": (file_of(b'{"a": {"dtype": "U8", "dtype": "I8"}}'), "'dtype' stands twice"),
    "NaN": (file_of(b'{"a": NaN}'), "NaN is not a JSON number"),
    "entry list": (file_of({"a": []}), "must have exactly dtype, shape and data_offsets"),
    "no dtype": (file_of({"a": {"shape": [], "data_offsets": [0, 4]}}, 4), "must have exactly"),
    "more keys": (file_of({"a": {**entry(), "x": 1}}, 24), "must have exactly"),
    "unknown dtype": (file_of({"a": entry("F8_E4M3")}, 24), "dtype 'F8_E4M3' is not one of"),
    "dtype list": (file_of({"a": entry(["F32"])}, 24), "dtype ['F32']"),
    "shape number": (file_of({"a": entry(shape=6)}, 24), "shape 6"),
    "shape of text": (file_of({"a": entry(shape=["2", "3"])}, 24), "shape ['2', '3']"),
    "shape fraction": (file_of({"a": entry(shape=[2.0, 3])}, 24), "shape [2.0, 3]"),
    "shape true": (file_of({"a": entry(shape=[True, 6])}, 24), "shape [True, 6]"),
    "shape negative": (file_of({"a": entry(shape=[-2, -3])}, 24), "shape [-2, -3]"),
    "shape of nine": (file_of({"a": entry(shape=[1] * 9)}, 24), "at most 8 sizes"),
    "shape wraps": (file_of({"a": entry(shape=[2**32, 2**32], offsets=[0, 0])}), "takes 73786976294838206464 bytes"),
    "shape of long numbers": (file_of({"a": entry(shape=[10**4000] * 8)}, 24), "shape [1000"),
    "one offset": (file_of({"a": entry(offsets=[24])}, 24), "are not two positions"),
    "offsets text": (file_of({"a": entry(offsets="ab")}, 24), "are not two positions"),
    "offset negative": (file_of({"a": entry(offsets=[-24, 0])}, 24), "are not two positions"),
    "offsets turned": (file_of({"a": entry(offsets=[24, 0])}, 24), "give -24"),
    "size": (file_of({"a": entry(offsets=[0, 20])}, 20), "takes 24 bytes, data_offsets [0, 20] give 20"),
    "overlap": (file_of({"a": entry(), "b": entry(offsets=[12, 36])}, 36), "'b' begins at 12 and overlaps"),
    "same range": (file_of({"a": entry(), "b": entry()}, 24), "'b' begins at 0 and overlaps"),
    "hole": (file_of({"a": entry(), "b": entry(offsets=[28, 52])}, 52), "'b' begins at 28 and leaves a hole"),
    "hole in front": (file_of({"a": entry(offsets=[8, 32])}, 32), "'a' begins at 8 and leaves a hole"),
    "one byte less": (file_of({"a": entry()}, 23), "bytes, its header asks for"),
    "one byte more": (file_of({"a": entry()}, 25), "it was cut or grew"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_by_name(name: str, tmp_path: Path) -> None:
    raw, message = HOSTILE[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(FormatError) as caught:
        TensorFile(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 500


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(FormatError, match="cannot be opened"):
            TensorFile(path)


def filled(start: bytes, block: bytes, end: bytes) -> bytes:
    return start + block * ((HEADER_LIMIT - len(start) - len(end)) // len(block)) + end


LARGE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: file_of(filled(b'{"a": [', b"[],", b"[]]}")),
    "objects": lambda: file_of(filled(b'{"a": [', b"{},", b"{}]}")),
    "numbers": lambda: file_of(filled(b'{"a": [', b"1e9,", b"1]}")),
    "names": lambda: file_of(b"{" + b",".join(b'"%06d":0' % i for i in range(400_000)) + b"}"),
    "one name": lambda: file_of(filled(b"{", b'"a":0,', b'"a":0}')),
    "long header": lambda: file_of(b"{" + b" " * (100 << 20) + b"}"),
    "tensors": lambda: file_of({f"{i:06d}": entry(shape=[0], offsets=[0, 0]) for i in range(60_000)}),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_headers_stay_within_time_and_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(LARGE[name]())
    outcome = open_in_limits(path, "format.tensorfile", "TensorFile")
    assert outcome.startswith("opened" if name == "tensors" else "FormatError"), outcome[:300]
    path.unlink()


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the format's own library."""
    path = tmp_path_factory.mktemp("valid") / "m.safetensors"
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(5, dtype=np.float16),
        "c": np.arange(7, dtype=np.uint8),
        "d": np.zeros((0, 4), np.float32),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    return path


def test_reads_what_the_library_wrote(valid: Path) -> None:
    file = TensorFile(valid)
    assert sorted(file.names()) == ["a", "b", "c", "d"]
    assert (file.dtype("b"), file.shape("a"), file.shape("d")) == ("F16", (2, 3), (0, 4))
    np.testing.assert_array_equal(file.array("a"), np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(file.array("b"), np.arange(5, dtype=np.float16))
    assert not file.array("a").flags.writeable


def test_every_truncation_is_refused(valid: Path, tmp_path: Path) -> None:
    raw = valid.read_bytes()
    path = tmp_path / "m.safetensors"
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(FormatError, match=f"has {length} bytes"):
            TensorFile(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_bytes_give_an_error_or_a_file(valid: Path, tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(valid.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(
            st.one_of(st.binary(min_size=1, max_size=4), st.sampled_from([b'"', b"9", b"}", b"[", b"-"]))
        )
        raw[at : at + len(change)] = change
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    try:
        file = TensorFile(path)
    except FormatError:
        return
    for name in file.names():
        assert file.array(name).shape == file.shape(name)
