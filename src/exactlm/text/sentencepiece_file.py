"""Reads a SentencePiece `tokenizer.model` (a protobuf) with every length checked against the file.

Only the fields that matter are kept; no protobuf library. Knows nothing of ids beyond their order.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exactlm.errors import TokenizerError, UnsupportedError
from exactlm.text.sentencepiece import NORMAL, Normalization, build_sentencepiece

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf wire types
_BPE = 2  # TrainerSpec.model_type
_MAX_BYTES = 64 * 2**20


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """Return the tokenizer.json object of the model at `path`.

    TokenizerError where the file is damaged, UnsupportedError where it is not a BPE model.
    """
    if path.stat().st_size > _MAX_BYTES:
        raise TokenizerError(f"{path}: {path.stat().st_size} bytes, more than {_MAX_BYTES}; not a tokenizer")
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    model_type, normalization = 1, Normalization(squeezes_spaces=True)
    seen: set[int] = set()
    try:
        for field, value in _iterate_fields(path.read_bytes()):
            seen.add(field)
            if field == 1:  # SentencePiece: piece = 1, score = 2, type = 3
                entry = dict(_iterate_fields(_as_bytes(value)))
                pieces.append(_as_bytes(entry.get(1, b"")).decode("utf-8"))
                scores.append(float(entry.get(2, 0.0)))
                types.append(int(entry.get(3, NORMAL)))
            elif field == 2:  # TrainerSpec
                model_type = int(dict(_iterate_fields(_as_bytes(value))).get(3, 1))
            elif field == 3:  # NormalizerSpec: charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4
                spec = dict(_iterate_fields(_as_bytes(value)))
                charsmap = _as_bytes(spec.get(2, b""))
                normalization = Normalization(bool(spec.get(3, 1)), bool(spec.get(4, 1)), charsmap)
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise TokenizerError(f"{path}: damaged SentencePiece model ({error}); download it again") from None
    if not {1, 2, 3} <= seen:
        raise TokenizerError(f"{path}: pieces, training or normalization are missing: cut short? Download it again")
    if model_type != _BPE:
        raise UnsupportedError(f"{path}: SentencePiece model type {model_type}; only BPE (2) is implemented")
    return build_sentencepiece(pieces, scores, types, normalization)


def _as_bytes(value: int | float | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has the wrong wire type")
    return value


def _iterate_fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) of a protobuf message; ValueError where it ends too early."""
    offset = 0
    while offset < len(data):
        key, offset = _read_varint(data, offset)
        field, wire = key >> 3, key & 7
        if wire == _VARINT:
            number, offset = _read_varint(data, offset)
            yield field, number
            continue
        if wire == _BYTES:
            size, offset = _read_varint(data, offset)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {offset}")
        if size > len(data) - offset:
            raise ValueError(f"a field of {size} bytes at byte {offset} of {len(data)}")
        chunk = data[offset : offset + size]
        offset += size
        yield field, struct.unpack("<f", chunk)[0] if wire == _FIXED32 else chunk


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError(f"a number longer than 10 bytes before byte {offset}")
