"""HTTP connections with limits that uvicorn lacks: on a header's time and size, and on readers that take nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from exactlm.server.errors import ApiError

MAX_HEADER_BYTES = 64 << 10


class CountingTransport:
    """A transport that counts what is written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._num_written = 0

    def write(self, data: bytes) -> None:
        """As asyncio's."""
        self._num_written += len(data)
        self._transport.write(data)

    @property
    def num_written(self) -> int:
        """Bytes so far, whether the reader took them or not."""
        return self._num_written

    @property
    def num_taken(self) -> int:
        """Bytes that have left the buffer."""
        return self._num_written - self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose headers must arrive within `read_seconds`."""

    read_seconds: float
    _header_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _active: RequestResponseCycle | None = None
    _counted: CountingTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._counted = CountingTransport(transport)
        super().connection_made(self._counted)  # type: ignore[arg-type]
        self._begin_header()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_header()
        # With another request in the pipeline, uvicorn tells only that one.
        if self._active is not None and not self._active.response_complete:
            self._active.disconnected = True
            self._active.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._header_timer is not None:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._header_timer is not None and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"the header has more than {MAX_HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["abort"] = self.transport.abort
        if self._header_timer is None:
            self._begin_header()

    def on_headers_complete(self) -> None:
        self._end_header()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._check_reader(self._counted.num_written, -1)

    def _check_reader(self, end: int, before: int) -> None:
        """Drops a connection whose reader takes nothing of what is left of a response, which may be megabytes.
        `end`: where the response ends. `before`: what was taken at the last look."""
        taken = self._counted.num_taken
        if taken == before:
            self.transport.abort()
        elif taken < end:
            self.loop.call_later(self.read_seconds, self._check_reader, end, taken)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _begin_header(self) -> None:
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(self.read_seconds, self._expire)

    def _end_header(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _expire(self) -> None:
        self._refuse(408, f"the header did not arrive within {self.read_seconds:g} seconds")

    def _refuse(self, status: int, message: str) -> None:
        self._end_header()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = ApiError(status, message).body
            head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode("ascii") + body)
        self.transport.close()


def make_protocol(read_seconds: float) -> type[HttpToolsProtocol]:
    """The protocol class for a server whose headers must arrive within `read_seconds`: uvicorn makes the connections,
    and gives them nothing of ours."""
    return type("Protocol", (BoundedProtocol,), {"read_seconds": read_seconds})
