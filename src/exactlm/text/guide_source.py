"""Checks of what a caller wants the output to fit, before llguidance reads it: type, size, nesting.

llguidance's own limits count work, but its readers recurse and would overflow the stack. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from exactlm.errors import RequestError

MAX_BYTES = 1 << 16
MAX_NESTING = 64  # brackets open at once
# One run of whitespace between two parts of a JSON text, and no endless one: small models fall into those.
_STYLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}
# Rule attributes that ask something of the sampler; it would not know.
_UNHEARD = re.compile(r"^[ \t]*[\w-]+[ \t]*\[[^\]\n]*\b(temperature|max_tokens|stop)[ \t]*=", re.MULTILINE)


def read_schema(schema: Mapping[str, Any] | str | bool) -> str:
    """JSON text of a schema, its keys in the order given: properties are written in that order."""
    if isinstance(schema, str):
        _check_size("json_schema", schema)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"json_schema is not JSON: {error}") from None
    if schema is False:
        raise RequestError("json_schema is false: no text fits it")
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise RequestError(f"json_schema is a {type(schema).__name__}: use a JSON object, its text, or True")
    style = schema.get("x-guidance", {})
    if not isinstance(style, Mapping):
        raise RequestError(f"json_schema: x-guidance is {style!r:.60}; use an object")
    try:
        text = json.dumps({**schema, "x-guidance": {**_STYLE, **style}}, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(f"json_schema is not plain JSON: {error}") from None
    _check_size("json_schema", text)
    _check_nesting("json_schema", text)
    return text


def read_regex(regex: object) -> str:
    """The regex, if it is one that can be written between slashes."""
    text = _check_text("regex", regex)
    if (len(text) - len(text.rstrip("\\"))) % 2:
        raise RequestError(f"regex {text!r:.60} ends in a lone backslash")
    _check_nesting("regex", text)
    return text


def read_grammar(grammar: object) -> str:
    """The grammar, if it asks for nothing but a form of the text."""
    text = _check_text("grammar", grammar)
    if found := _UNHEARD.search(text):
        raise RequestError(f"grammar: {found[0].strip()!r:.80}: the attribute {found[1]} is not available; remove it")
    _check_nesting("grammar", text)
    return text


def _check_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise RequestError(f"{name} is a {type(text).__name__}: use a text")
    if not text.strip():
        raise RequestError(f"{name} is empty")
    _check_size(name, text)
    return text


def _check_size(name: str, text: str) -> None:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise RequestError(f"{name} has an unpaired surrogate at position {error.start}") from None
    if size > MAX_BYTES:
        raise RequestError(f"{name} has {size} bytes; at most {MAX_BYTES} are allowed")


def _check_nesting(name: str, text: str) -> None:
    """Counts brackets wherever they stand, so a bracket inside a string counts too: an upper bound is enough."""
    depth = 0
    for char in re.findall(r"[(\[{}\])]", text):
        depth = depth + 1 if char in "([{" else max(depth - 1, 0)
        if depth > MAX_NESTING:
            raise RequestError(f"{name} nests more than {MAX_NESTING} brackets")
