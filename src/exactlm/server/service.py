"""What every endpoint shares: the model, the engine's thread, the limits, the records. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from exactlm.errors import ExactlmError
from exactlm.llm import LLM
from exactlm.server.auth import KeyRing
from exactlm.server.errors import ApiError
from exactlm.server.exchange import Exchange
from exactlm.server.limit import RETRY_SECONDS, Limits
from exactlm.server.loop import EngineLoop, News
from exactlm.server.metric import Metrics
from exactlm.server.prompt import check_size
from exactlm.server.recorder import Recorder
from exactlm.server.request_log import RequestLog
from exactlm.server.room import Room
from exactlm.server.summary import describe_exchange, make_timings, make_usage

_LOG = logging.getLogger("exactlm.server")

_WORKERS = 4  # threads that parse, render and tokenise: they wait for a template's process, not for processors
T = TypeVar("T")


@dataclass(frozen=True)
class ServerConfig:
    """How to serve. Nothing here changes an answer."""

    model_name: str
    limits: Limits = field(default_factory=Limits)
    keys: KeyRing = field(default_factory=lambda: KeyRing(()))
    cors_origins: tuple[str, ...] = ()
    request_log: RequestLog | None = None
    recorder: Recorder = field(default_factory=Recorder)


class Service:
    """The running server behind the endpoints."""

    def __init__(self, llm: LLM, config: ServerConfig, max_batch: int) -> None:
        self.llm, self.config, self.limits = llm, config, config.limits
        self.room = Room(max_batch + config.limits.max_waiting)
        self.loop = EngineLoop(llm, self._deliver)
        self.metrics = Metrics(llm, config.model_name, lambda: self.loop.num_failed_steps)
        self.is_draining = False
        self._workers = ThreadPoolExecutor(_WORKERS, "exactlm-worker")
        self._exchanges: set[Exchange] = set()
        self._events: asyncio.AbstractEventLoop | None = None
        self._ticks: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Starts the engine's thread; answers are told to the running event loop."""
        self._events = asyncio.get_running_loop()
        self.loop.start()
        self._tick()
        await self.run_aside(self._warm_up)

    def stop(self) -> None:
        """Ends the engine's thread and the workers."""
        if self._ticks is not None:
            self._ticks.cancel()
        self.loop.stop()
        self._workers.shutdown(wait=False, cancel_futures=True)
        if self.config.request_log is not None:
            self.config.request_log.close()
        self.config.recorder.close()

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self.loop.is_alive and not self.is_draining

    def check_ready(self) -> None:
        """ApiError 503 while the server stops."""
        if not self.is_ready:
            headers = {"Retry-After": str(RETRY_SECONDS), "Connection": "close"}
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)

    async def run_aside(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of `work`, done in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work, *arguments)

    def open(self, exchange: Exchange) -> None:
        """Takes note of a request that has arrived."""
        self._exchanges.add(exchange)
        self.metrics.open_requests.inc()

    def close(self, exchange: Exchange) -> None:
        """Ends a request, and records it."""
        exchange.close(self.loop, self.room)
        self._exchanges.discard(exchange)
        self.metrics.open_requests.dec()
        self.metrics.requests.labels(exchange.endpoint, str(exchange.status)).inc()
        if exchange.outputs:
            num_answers = sum(len(output.outputs) for output in exchange.outputs)
            num_tokens = make_usage(exchange)["completion_tokens"]
            self.metrics.observe(make_timings(exchange), num_tokens, num_answers)
        if self.config.request_log is not None:
            self.config.request_log.write(exchange, self.config.model_name, self.llm.fingerprint)
        if _LOG.isEnabledFor(logging.INFO):
            _LOG.info(describe_exchange(exchange))

    def end_all(self) -> None:
        """Ends the requests under way with an error: the time for finishing them is over."""
        for exchange in self._exchanges:
            exchange.end(ApiError(503, "the server is shutting down", code="shutting_down"))

    def _warm_up(self) -> None:
        """The first rendering starts a process, and the longest token is sought: better now than in a request."""
        check_size(self.llm, 0, "")
        with contextlib.suppress(ExactlmError):
            self.llm.chat_ids([{"role": "user", "content": "."}])

    def _deliver(self, news: list[News]) -> None:
        """Called in the engine's thread, once for each step that brought something."""
        assert self._events is not None
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._events.call_soon_threadsafe(_hand_out, news)

    def _tick(self) -> None:
        """Lets silent streams show that they live."""
        for exchange in self._exchanges:
            if exchange.is_streaming and exchange.is_quiet:
                exchange.changed.set()
            exchange.is_quiet = True
        assert self._events is not None
        self._ticks = self._events.call_later(self.limits.ping_seconds, self._tick)


def _hand_out(news: list[News]) -> None:
    for item in news:
        item.owner.take(item)
