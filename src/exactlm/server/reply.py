"""Writes whole JSON responses as ASGI messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.types import Send


async def send_json(
    send: Send,
    status: int,
    body: bytes,
    raw_headers: Iterable[tuple[bytes, bytes]] = (),
    headers: Mapping[str, str] | None = None,
) -> None:
    """One response with a JSON body."""
    told = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in (headers or {}).items()]
    size = str(len(body)).encode("ascii")
    fixed = [(b"content-type", b"application/json"), (b"content-length", size)]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *raw_headers, *told]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
