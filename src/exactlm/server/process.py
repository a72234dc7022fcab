"""Runs the server in this process: the socket, the signals, the orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import uvicorn

from exactlm.errors import ConfigError
from exactlm.server.app import make_app
from exactlm.server.exchange import LAST_SECONDS
from exactlm.server.protocol import make_protocol
from exactlm.server.service import Service

_KEEP_ALIVE_SECONDS = 75  # longer than proxies keep a connection: it is theirs to close


def bind(host: str, port: int) -> socket.socket:
    """A socket with the address; nobody can connect yet. ConfigError names what is wrong with it."""
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"port {port}: use a number from 0 to 65535")
    made = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(found[0], found[1])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
    except (OSError, UnicodeError) as error:
        if made is not None:
            made.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error}; use another --host or --port") from None
    return made


def tell_address(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(service: Service, bound: socket.socket, announce: Callable[[], None]) -> None:
    """Serves until a signal ends it. `announce` is called when connections are taken."""
    limits = service.limits
    config = uvicorn.Config(
        make_app(service, int(time.time())),
        http=make_protocol(limits.read_seconds),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(limits.grace_seconds + 2 * LAST_SECONDS)),
    )
    server = _Server(config, service)
    server.run_with(bound, announce)


class _Server(uvicorn.Server):
    """uvicorn's server with our signals: the first ends it in order, the second at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def run_with(self, bound: socket.socket, announce: Callable[[], None]) -> None:
        """Runs to the end."""
        factory = self.config.get_loop_factory()
        loop = factory() if factory is not None else asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._run(bound, announce))
        finally:
            loop.close()

    async def _run(self, bound: socket.socket, announce: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        await self._service.start()
        try:
            watch = asyncio.create_task(self._announce(announce))
            await self.serve(sockets=[bound])
            watch.cancel()
        finally:
            self._service.stop()

    async def _announce(self, announce: Callable[[], None]) -> None:
        while not self.started:
            await asyncio.sleep(0.005)
        announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to us."""
        yield

    def _stop(self, number: int) -> None:
        if self._service.is_draining:
            print("exactlm serve: stopped at once", file=sys.stderr, flush=True)
            os._exit(128 + number)
        grace = self._service.limits.grace_seconds
        print(f"exactlm serve: stopping; answers under way have {grace:g} s", file=sys.stderr, flush=True)
        self._service.is_draining = True
        self.should_exit = True
        asyncio.get_running_loop().call_later(grace, self._service.end_all)
