"""Connections in a real uvicorn server: readers that take nothing are dropped, the others are not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from exactlm.server.protocol import make_protocol

MANY = 24 << 20  # bytes: more than the sockets' buffers take
WAIT_S = 20.0


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """As many bytes as the path says."""
    body = bytes(int(scope["path"][1:]))
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def read_seconds() -> float:
    return 3.0


@pytest.fixture
def server(read_seconds: float) -> uvicorn.Server:
    config = uvicorn.Config(answer, http=make_protocol(read_seconds), ws="none", lifespan="off", log_level="error")
    return uvicorn.Server(config)


@pytest.fixture
def connection(server: uvicorn.Server) -> Iterator[socket.socket]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        with contextlib.closing(socket.create_connection(bound.getsockname(), timeout=WAIT_S)) as made:
            yield made
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def ask(connection: socket.socket, num_bytes: int) -> None:
    connection.sendall(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % num_bytes)


def take(connection: socket.socket, num_bytes: int) -> int:
    """Reads a whole response, or what comes of it; the bytes of its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1)
    count = 0
    while count < num_bytes and (part := connection.recv(min(1 << 20, num_bytes - count))):
        count += len(part)
    return count


def test_who_takes_one_response_may_rest_at_the_next(connection: socket.socket, read_seconds: float) -> None:
    ask(connection, MANY)
    assert take(connection, MANY) == MANY
    time.sleep(read_seconds * 0.9)
    ask(connection, 2 * MANY)
    # Beyond the check of the first response, and on a slow machine too before that of the second.
    time.sleep(read_seconds * 0.2)
    assert take(connection, 2 * MANY) == 2 * MANY


@pytest.mark.parametrize("read_seconds", [0.5])
@pytest.mark.parametrize("num_requests", [1, 2])
def test_who_takes_nothing_is_dropped(
    server: uvicorn.Server, connection: socket.socket, read_seconds: float, num_requests: int
) -> None:
    begin = time.monotonic()
    for _ in range(num_requests):
        ask(connection, MANY)
    wait_for(lambda: server.server_state.total_requests > 0 and not server.server_state.connections)
    assert time.monotonic() - begin > read_seconds / 2
    with contextlib.suppress(ConnectionResetError):
        assert take(connection, MANY) < MANY
