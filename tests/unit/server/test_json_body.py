"""Strict JSON: what is no object, ambiguous or hostile is refused with a reason, and names the field where it can."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exactlm.server.errors import ApiError
from exactlm.server.json_body import MAX_DEPTH, parse_body

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans())
def test_sound_objects_are_read_as_they_are(body: dict[str, object], is_ascii: bool) -> None:
    assert parse_body(json.dumps(body, ensure_ascii=is_ascii).encode()) == body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "a JSON list"),
        (b'"text"', "a JSON str"),
        (b"null", "a JSON NoneType"),
        (b"{", "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b'{"a": 1} {}', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 01}', "not JSON"),
        (b'{"a": .5}', "not JSON"),
        (b'{"a": NaN}', "NaN is not"),
        (b'{"a": [Infinity]}', "Infinity is not"),
        (b'{"a": -Infinity}', "-Infinity is not"),
        (b'{"a": 1e400}', "too large"),
        (b'{"a": -1e999}', "too large"),
        (b'{"a": 1e-400}', "1e-400 is too small"),
        (b'{"a": [-0.002E-322]}', "too small"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a": 1, "b": 2, "a": 1}', "'a' stands twice"),
        (b'{"m": {"x": 1, "x": 2}}', "'x' stands twice"),
        (b'{"a": "\\ud800"}', "a has an unpaired surrogate U+D800 at 0"),
        (b'{"m": [{"c": "ok \\udfff"}]}', "m[0].c has an unpaired surrogate U+DFFF at 3"),
        (b'{"\\ud800": 1}', "a name has an unpaired surrogate"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        (b'\xff\xfe{"a": 1}', "not UTF-8 at byte 0"),
        (b'{"a": "tab\there"}', "not JSON"),
        (b'{"a": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nests deeper"),
        (b'{"a":' * 90_000 + b"1" + b"}" * 90_000, "nests deeper"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nests deeper"),
    ],
)
def test_others_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(data)
    assert caught.value.status == 400
    assert reason in str(caught.value)


def test_the_deepest_that_is_allowed_is_read() -> None:
    depth = MAX_DEPTH - 1
    assert parse_body(b'{"a": ' + b"[" * depth + b"]" * depth + b"}")["a"] is not None


def test_zeros_and_the_smallest_numbers_are_read() -> None:
    assert parse_body(b'{"a": [0.0, 0e7, 0.00E-999, 5e-324, 1e-320]}') == {"a": [0.0, 0.0, 0.0, 5e-324, 1e-320]}


def test_paired_surrogates_are_one_character() -> None:
    assert parse_body(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_a_name_that_stands_twice_is_found_in_any_length() -> None:
    names = ",".join(f'"{i}":1' for i in range(300_000))
    with pytest.raises(ApiError, match="'299999' stands twice"):
        parse_body(f'{{{names},"299999":1}}'.encode())


def test_brackets_in_texts_are_no_lists() -> None:
    text = '[{"\\' * 100_000
    assert parse_body(json.dumps({"a": text, "b": [[]]}).encode()) == {"a": text, "b": [[]]}
    with pytest.raises(ApiError, match="100002 objects and lists"):
        parse_body(b'{"a": [' + b"[]," * 99_999 + b"{}]}")


def test_a_text_that_never_closes_takes_one_pass() -> None:
    with pytest.raises(ApiError, match="not JSON"):
        parse_body(b'{"a": "' + b"[" * 100_001 + b'\\"' * 500_000)
