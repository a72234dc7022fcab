"""Reads a request's body within the limits on size and time, and watches for the asker to leave."""

from __future__ import annotations

import asyncio
import re

from starlette.types import Receive, Scope

from exactlm.server.errors import ApiError
from exactlm.server.limit import Limits

_JSON_TYPE = re.compile(rb"application/(?:[\w.-]+\+)?json\s*(?:;\s*charset=\"?utf-?8\"?\s*)?", re.IGNORECASE)
# Bytes of a body that is too large are still read, so that the asker reads our answer before the connection closes.
_MAX_DISCARDED_BYTES = 64 << 20


class ClientGoneError(Exception):
    """The asker closed the connection; there is nobody to answer."""


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The whole body. ApiError 408, 413, 415 (not JSON: a web page could send that without asking); ClientGoneError."""
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"")
    if not _JSON_TYPE.fullmatch(kind.strip()):
        told = kind.decode("latin-1") or "none"
        raise ApiError(415, f"content-type is {told:.80}: send JSON with the header `Content-Type: application/json`")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ApiError(415, "content-encoding: compressed bodies are not read; send the JSON as it is")
    declared = headers.get(b"content-length", b"")
    size = int(declared) if declared.isdigit() and len(declared) < 20 else 0
    if size > limits.max_body_bytes and headers.get(b"expect", b"").lower() == b"100-continue":
        raise _refuse(size, limits)
    try:
        return await asyncio.wait_for(_read(receive, limits), limits.read_seconds)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {limits.read_seconds:g} seconds"
        raise ApiError(408, message, code="read_timeout", headers={"Connection": "close"}) from None


async def _read(receive: Receive, limits: Limits) -> bytes:
    chunks: list[bytes] = []
    size, is_last = 0, False
    while not is_last:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, is_last = message.get("body", b""), not message.get("more_body", False)
        size += len(chunk)
        if size <= limits.max_body_bytes:
            chunks.append(chunk)
        elif size > limits.max_body_bytes + _MAX_DISCARDED_BYTES:
            break
    if size > limits.max_body_bytes:
        raise _refuse(size, limits)
    return b"".join(chunks)


def _refuse(size: int, limits: Limits) -> ApiError:
    message = f"the body has {size} bytes or more; this server reads at most {limits.max_body_bytes}"
    return ApiError(413, message, code="request_too_large", headers={"Connection": "close"})


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the asker has left. To be called after the whole body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
