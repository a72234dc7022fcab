"""Reads request bodies as strict JSON: what two parsers could read differently is refused. Knows no field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from exactlm.server.errors import ApiError

MAX_DEPTH = 64
# A megabyte of "[],[],.." becomes a hundred megabytes of lists, and holds up everybody meanwhile.
MAX_CONTAINERS = 100_000
# One that is never closed reaches to the end, so that no text takes more than one pass.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_NONZERO = re.compile("[-0.]*[1-9]")
_MAX_NUMBER_CHARS = 400  # a float64 never needs more; Python's own limit is 4300 digits and costs quadratic time


def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`. ApiError 400: not UTF-8, not an object, a name twice, NaN or infinity, a number that
    no float64 holds, an unpaired surrogate, nesting beyond MAX_DEPTH, more than MAX_CONTAINERS."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refuse(f"the body is not UTF-8 at byte {error.start}") from None
    _check_size(text)
    try:
        body = json.loads(
            text,
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except RecursionError:
        raise _refuse(f"the body nests deeper than {MAX_DEPTH} levels") from None
    except json.JSONDecodeError as error:
        raise _refuse(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(body, dict):
        raise _refuse(f"the body is a JSON {type(body).__name__}; an object is expected")
    _check_depth(body)
    if "\\u" in text:  # only an escape can bring a surrogate: the decoder refuses encoded ones
        _check_surrogates(body)
    return body


def _check_size(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_CONTAINERS:
        return
    outside = _STRING.sub("", text)
    count = outside.count("[") + outside.count("{")
    if count > MAX_CONTAINERS:
        raise _refuse(f"the body has {count} objects and lists; at most {MAX_CONTAINERS} are read")


def _refuse(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_json")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = next(name for (name, _), known in zip(pairs, _count_known(pairs), strict=True) if known)
        raise _refuse(f"the name {twice!r:.80} stands twice in one object", twice)
    return result


def _count_known(pairs: list[tuple[str, Any]]) -> Iterator[bool]:
    """For each name, whether it came before."""
    seen: set[str] = set()
    for name, _ in pairs:
        yield name in seen
        seen.add(name)


def _refuse_constant(name: str) -> Any:
    raise _refuse(f"{name} is not a JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _refuse(f"the number {text:.40} is too large")
    if value == 0 and _NONZERO.match(text):  # a temperature of 1e-400 is not one of 0
        raise _refuse(f"the number {text:.40} is too small")
    return value


def _parse_int(text: str) -> int:
    if len(text) > _MAX_NUMBER_CHARS:
        raise _refuse(f"the number {text:.40}.. has {len(text)} digits")
    return int(text)


def _check_depth(body: dict[str, Any]) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        level = [
            v for item in level for v in (item.values() if type(item) is dict else item) if type(v) in (dict, list)
        ]
        if not level:
            return
    raise _refuse(f"the body nests deeper than {MAX_DEPTH} levels")


def _check_surrogates(value: Any, path: str = "") -> None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"U+{ord(value[error.start]):04X}"
            raise _refuse(f"{path or 'a name'} has an unpaired surrogate {found} at {error.start}", path) from None
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_surrogates(name)
            _check_surrogates(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_surrogates(item, f"{path}[{index}]")
