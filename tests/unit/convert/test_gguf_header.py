"""Hostile and damaged GGUF files: a named error, in little time and memory, never a crash."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exactlm.convert.checkpoint import open_checkpoint
from exactlm.convert.gguf_header import MAX_HEADER_BYTES, MAX_VALUES, read_header
from exactlm.errors import CheckpointError, ConfigError, ExactlmError, UnsupportedError
from tests.unit.convert.gguf_file import write_gguf
from tests.unit.convert.limit import open_in_limits

U32, STRING, ARRAY = 4, 8, 9


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(item: int, count: int, body: bytes) -> bytes:
    return struct.pack("<IQ", item, count) + body


def tensor(name: str = "a.weight", sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def gguf(keys: list[bytes] = [], tensors: list[bytes] = [], data: int = 0, version: int = 3) -> bytes:  # noqa: B006
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join([*keys, *tensors])
    return head + bytes(-len(head) % 32 + data)


ALIGN = "general.alignment"
HEAD = b"GGUF" + struct.pack("<I", 3)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "only the magic": (b"GGUF", "the version needs 4 bytes"),
    "version 1": (gguf(version=1), "GGUF version 1"),
    "version 4": (gguf(version=4), "GGUF version 4"),
    "big-endian": (gguf(version=3 << 24), "big-endian"),
    "number of tensors": (HEAD + struct.pack("<QQ", 2**64 - 1, 0) + bytes(64), "18446744073709551615 tensors"),
    "number of keys": (HEAD + struct.pack("<QQ", 0, 2**63) + bytes(64), "9223372036854775808 keys"),
    "many keys": (HEAD + struct.pack("<QQ", 0, 1 << 20) + bytes(14 << 20), "1048576 keys"),
    "no keys follow": (HEAD + struct.pack("<QQ", 0, 1), "a key needs 8 bytes at 24"),
    "key length": (HEAD + struct.pack("<QQQ", 0, 1, 2**64 - 1) + bytes(64), "a key needs 18446744073709551615 bytes"),
    "empty key": (gguf([key("", U32, bytes(4))]), "empty or too long"),
    "long key": (gguf([key("k" * 65536, U32, bytes(4))]), "empty or too long"),
    "key not UTF-8": (gguf([text(b"\xff\xfe") + bytes(16)]), "a key is not UTF-8"),
    "key twice": (gguf([key("a", U32, bytes(4)), key("a", U32, bytes(4))]), "'a' stands twice"),
    "value type": (gguf([key("a", 13, bytes(8))]), "has type 13"),
    "bool 2": (gguf([key("a", 7, b"\x02")]), "neither 0 nor 1"),
    "string length": (gguf([key("a", STRING, struct.pack("<Q", 2**64 - 1))]), "needs 18446744073709551615 bytes"),
    "string not UTF-8": (gguf([key("a", STRING, text(b"\xc3"))]), "'a' is not UTF-8"),
    "array length": (gguf([key("a", ARRAY, array(U32, 2**64 - 1, b""))]), "18446744073709551615 elements"),
    "arrays of many values": (
        gguf([key(k, ARRAY, array(0, MAX_VALUES // 2 + 1, bytes(MAX_VALUES // 2 + 1))) for k in "ab"]),
        f"at most {MAX_VALUES} are read",
    ),
    "arrays of many arrays": (
        gguf([key("a", ARRAY, array(ARRAY, MAX_VALUES // 16 + 1, bytes(MAX_VALUES)))]),
        f"at most {MAX_VALUES} are read",
    ),
    "array longer than the file": (gguf([key("a", ARRAY, array(U32, 1 << 20, b""))]), "needs 4194304 bytes"),
    "strings longer than the file": (gguf([key("a", ARRAY, array(STRING, 1 << 20, b""))]), "the file has"),
    "array type": (gguf([key("a", ARRAY, array(99, 1, b"\0"))]), "has type 99"),
    "nested arrays": (gguf([key("a", ARRAY, array(ARRAY, 1, b"") * 1000)]), "nests arrays more than 4"),
    "alignment 0": (gguf([key(ALIGN, U32, struct.pack("<I", 0))]), "alignment=0"),
    "alignment 3": (gguf([key(ALIGN, U32, struct.pack("<I", 3))]), "alignment=3"),
    "alignment 2^30": (gguf([key(ALIGN, U32, struct.pack("<I", 1 << 30))]), "alignment=1073741824"),
    "alignment text": (gguf([key(ALIGN, STRING, text("32"))]), "alignment='32'"),
    "n_dims 0": (gguf([], [text("a") + bytes(30)]), "0 dimensions"),
    "n_dims 1e6": (gguf([], [text("a") + struct.pack("<I", 10**6) + bytes(64)]), "1000000 dimensions"),
    "size 0": (gguf([], [tensor(sizes=(32, 0))]), "sizes [32, 0]"),
    "sizes past 2^64": (gguf([], [tensor(sizes=(2**62, 2**62, 2**62, 2**62))]), "it was cut or is damaged"),
    "sizes wrap to 0": (gguf([], [tensor(sizes=(2**32, 2**32))]), "ends at byte 7378697629483820"),
    "tensor type": (gguf([], [tensor(kind=4)], 128), "type 4"),
    "part of a block": (gguf([], [tensor(sizes=(33,), kind=8)], 128), "whole blocks of 32"),
    "row of part of a block": (gguf([], [tensor(sizes=(16, 2), kind=2)], 128), "whole blocks of 32"),
    "misaligned": (gguf([], [tensor(offset=4)], 256), "not a multiple of the alignment 32"),
    "outside": (gguf([], [tensor(offset=1 << 40)], 128), "ends at byte 1099511"),
    "offset wraps": (gguf([], [tensor(offset=2**64 - 32)], 128), "ends at byte 18446744073709551"),
    "overlap": (gguf([], [tensor("a"), tensor("b", offset=96)], 256), "'b' begins at byte"),
    "same place": (gguf([], [tensor("a"), tensor("b")], 256), "inside 'a'"),
    "tensor twice": (gguf([], [tensor("a"), tensor("a", offset=128)], 256), "'a' stands twice"),
    "name not UTF-8": (gguf([], [text(b"\xff") + bytes(40)], 128), "tensor name is not UTF-8"),
    "cut data": (gguf([], [tensor()], 127), "it was cut or is damaged"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_header_is_refused_by_name(name: str, tmp_path: Path) -> None:
    raw, message = HOSTILE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_what_these_tests_build_is_sound_without_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([key("a", ARRAY, array(ARRAY, 1, array(U32, 1, bytes(4))))], [tensor()], 128))
    header, _ = read_header(path)
    assert header.metadata == {"a": [[0]]}
    assert header.tensors["a.weight"].shape == (32,)


def repeat(path: Path, head: bytes, block: bytes, count: int) -> None:
    path.write_bytes(gguf([head + block * count]))


LARGE: dict[str, Callable[[Path], None]] = {
    "empty strings": lambda p: repeat(
        p, text("a") + struct.pack("<IIQ", ARRAY, STRING, MAX_VALUES), bytes(8), MAX_VALUES
    ),
    "short strings": lambda p: repeat(
        p, text("a") + struct.pack("<IIQ", ARRAY, STRING, MAX_VALUES), text("xy"), MAX_VALUES
    ),
    "too many strings": lambda p: repeat(p, text("a") + struct.pack("<IIQ", ARRAY, STRING, 1 << 24), bytes(8), 1 << 24),
    "wide string": lambda p: p.write_bytes(
        gguf([key("a", STRING, text(b"x" * (MAX_HEADER_BYTES - 99) + "😀".encode()))])
    ),
    "long string": lambda p: p.write_bytes(gguf([key("a", STRING, text(b"x" * (40 << 20)))])),
    "numbers": lambda p: p.write_bytes(gguf([key("a", ARRAY, array(12, MAX_VALUES, b"\x01" * (8 * MAX_VALUES)))])),
    "empty arrays": lambda p: repeat(
        p, text("a") + struct.pack("<IIQ", ARRAY, ARRAY, MAX_VALUES // 16), array(U32, 0, b""), MAX_VALUES // 16
    ),
    "many keys": lambda p: p.write_bytes(gguf([key(f"{i:01000d}", U32, bytes(4)) for i in range(1 << 14)])),
    "many tensors": lambda p: p.write_bytes(gguf([], [tensor(f"{i:01000d}", offset=i * 128) for i in range(1 << 14)])),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_headers_stay_within_time_and_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    LARGE[name](path)
    assert open_in_limits(path).startswith(("CheckpointError", "UnsupportedError"))
    path.unlink()


BAD_KEYS: dict[str, tuple[dict[str, object], tuple[str, ...], type[ExactlmError], str]] = {
    "architecture": ({"general.architecture": "qwen2"}, (), UnsupportedError, "qwen2"),
    "unknown key": ({"llama.attention.scale": 0.5}, (), ConfigError, "llama.attention.scale"),
    "experts": ({"llama.expert_count": 8}, (), UnsupportedError, "expert_count=8"),
    "one part of several": ({"split.count": 2}, (), UnsupportedError, "llama-gguf-split --merge"),
    "layout": ({"llama.tensor_data_layout": "half"}, (), UnsupportedError, "tensor_data_layout='half'"),
    "no eps": ({}, ("llama.attention.layer_norm_rms_epsilon",), ConfigError, "layer_norm_rms_epsilon' is missing"),
    "no context": ({}, ("llama.context_length",), ConfigError, "context_length' is missing"),
    "no tokens": ({}, ("tokenizer.ggml.tokens",), ConfigError, "tokens' is missing"),
    "eps 0": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, (), ConfigError, "rms_norm_eps=0.0"),
    "eps NaN": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, (), ConfigError, "rms_norm_eps=nan"),
    "eps text": ({"llama.attention.layer_norm_rms_epsilon": "1"}, (), ConfigError, "type float"),
    "base 0": ({"llama.rope.freq_base": 0.0}, (), ConfigError, "rope_theta=0.0"),
    "base inf": ({"llama.rope.freq_base": float("inf")}, (), ConfigError, "rope_theta=inf"),
    "heads 0": ({"llama.attention.head_count": 0}, (), ConfigError, "head_count=0"),
    "kv heads 0": ({"llama.attention.head_count_kv": 0}, (), ConfigError, "num_kv_heads=0"),
    "kv heads 3": ({"llama.attention.head_count_kv": 3}, (), ConfigError, "num_kv_heads=3"),
    "kv heads per layer": ({"llama.attention.head_count_kv": [2, 2]}, (), ConfigError, "type int"),
    "layers": ({"llama.block_count": 2**32 - 1}, (), ConfigError, "num_layers=4294967295"),
    "one layer less": ({"llama.block_count": 1}, (), CheckpointError, "layers.1"),
    "one layer more": ({"llama.block_count": 3}, (), CheckpointError, "layers.2"),
    "hidden": ({"llama.embedding_length": 65}, (), CheckpointError, "shape [517, 64]"),
    "vocab_size": ({"llama.vocab_size": 518}, (), UnsupportedError, "vocab_size=518"),
    "value length": ({"llama.attention.value_length": 8}, (), UnsupportedError, "value_length=8"),
    "partial rotary": ({"llama.rope.dimension_count": 8}, (), UnsupportedError, "dimension_count=8"),
    "longrope": ({"llama.rope.scaling.type": "longrope"}, (), UnsupportedError, "'longrope'"),
    "yarn without window": (
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, (), ConfigError, "original_context",
    ),
    "yarn attn_factor": ({"llama.rope.scaling.attn_factor": 0.5}, (), UnsupportedError, "attn_factor=0.5"),
    "linear factor": ({"llama.rope.scaling.factor": -1.0}, (), ConfigError, "factor=-1.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_KEYS)
def test_bad_metadata_is_refused_by_name(name: str, tmp_path: Path) -> None:
    keys, without, kind, message = BAD_KEYS[name]
    keys = dict(keys)
    architecture = keys.pop("general.architecture", None)
    path = write_gguf(tmp_path / "m.gguf", keys=keys, without=without)
    if architecture is not None:
        path.write_bytes(path.read_bytes().replace(text("llama"), text(str(architecture)), 1))
    with pytest.raises(kind) as caught:
        open_checkpoint(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.0.attn_q_norm.weight", "no place"),
        ("blk.2.attn_q.weight", "no place"),
        ("blk.01.attn_norm.weight", "no place"),
        (f"blk.{'9' * 5000}.attn_norm.weight", "no place"),
        ("blk.0.attn_k.bias", "no place"),
        ("rope_factors_long.weight", "no place"),
        ("rope_freqs.weight", "shape"),
    ],
)
def test_a_tensor_without_a_place_is_not_dropped(name: str, message: str, tmp_path: Path) -> None:
    import numpy as np

    path = write_gguf(tmp_path / "m.gguf", change=lambda w: w.add_tensor(name, np.ones(32, np.float32)))
    with pytest.raises(ExactlmError, match=message) as caught:
        open_checkpoint(path)
    assert type(caught.value) in (CheckpointError, UnsupportedError)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("valid") / "m.gguf", kind="Q8_0")


def test_every_truncation_is_refused(valid: Path, tmp_path: Path) -> None:
    raw = valid.read_bytes()
    header, _ = read_header(valid)
    end = max(info.end for info in header.tensors.values())
    path = tmp_path / "m.gguf"
    lengths = {end - 1, end - 4096, end // 2, *range(0, 200), *range(200, end, 4001)}
    for length in sorted(lengths):
        path.write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
    path.write_bytes(raw[: end - 1])
    with pytest.raises(CheckpointError, match=f"ends at byte {end}, the file has {end - 1}"):
        open_checkpoint(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_bytes_give_an_error_of_ours_or_a_checkpoint(
    valid: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(valid.read_bytes())
    header, _ = read_header(valid)
    first = min(info.begin for info in header.tensors.values())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, first - 1))
        change = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8))))
        raw[at : at + len(change)] = change
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    try:
        checkpoint = open_checkpoint(path)
    except ExactlmError:
        return
    for tensor in checkpoint.tensors.values():
        assert tensor.read().shape == tensor.shape
