"""Reads the body of an HTTP response within a time and a size. Knows no API.

httpx limits each read alone, so a server that drips or never ends would hold an audit for ever; and it cuts lines at
U+2028 too, which JSON may hold as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

MAX_BYTES = 64 << 20


class Body:
    """The body of a response that is open. end: time.monotonic() by which it must be there.

    httpx.ReadTimeout after that; ValueError for more than MAX_BYTES, and for what is no JSON in UTF-8."""

    def __init__(self, response: httpx.Response, end: float) -> None:
        self._response, self._end = response, end

    def text(self) -> str:
        """All of it; what is no UTF-8 is replaced."""
        return b"".join(self._parts()).decode(errors="replace")

    def json(self) -> Any:
        """All of it, as JSON."""
        return read_json(b"".join(self._parts()))

    def lines(self) -> Iterator[str]:
        """Its lines, as they come."""
        rest = b""
        for part in self._parts():
            *whole, rest = (rest + part).split(b"\n") if b"\n" in part else (rest + part,)
            for line in whole:
                yield line.removesuffix(b"\r").decode()
        if rest:
            yield rest.decode()

    def _parts(self) -> Iterator[bytes]:
        size = 0
        for part in self._response.iter_bytes():
            size += len(part)
            if size > MAX_BYTES:
                raise ValueError(f"the response is longer than {MAX_BYTES} bytes")
            if time.monotonic() > self._end:
                raise httpx.ReadTimeout("the response was not whole in time")
            yield part


def read_json(data: bytes | str) -> Any:
    """ValueError for what is no JSON, and for what is nested too deeply to read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
