"""Untrusted JSON objects: bounded in size, no name twice, no NaN. Knows nothing of what the objects mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exactlm.errors import ExactlmError

# Python needs up to 24 bytes of memory for one of JSON ("[],[],"), so 4 MiB stay below 100 MiB.
JSON_LIMIT = 4 << 20


def parse_object(text: bytes, where: str, error: type[ExactlmError]) -> dict[str, Any]:
    """The JSON object that `text` holds; `error`, beginning with `where`, if it is not one, or names one key twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise ValueError(f"the name {name!r:.100} stands twice")
            result[name] = value
        return result

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as reason:
        raise error(f"{where}: cannot be read as JSON: {reason}") from None
    if not isinstance(value, dict):
        raise error(f"{where}: holds a {type(value).__name__}, an object is expected")
    return value


def read_object(path: Path, error: type[ExactlmError], absent: str) -> dict[str, Any]:
    """The JSON object in a file; `error` naming the file if it is absent (the hint `absent`), too large or not one."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # to open a pipe would wait for a writer
            raise error(f"{path}: is not a file; {absent}")
        if size > JSON_LIMIT:
            raise error(f"{path}: {size} bytes is more than the {JSON_LIMIT} expected of this file")
        text = path.read_bytes()
    except FileNotFoundError:
        raise error(f"{path}: no such file; {absent}") from None
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror}") from None
    return parse_object(text, str(path), error)
