"""One request for answers, from its arrival to the end of its response: what the engine owes it and what has come.

Lives on the event loop; only `reserve`, `expect` and `attach` are called from worker threads. Knows nothing of formats.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from exactlm.engine.sampling_params import SamplingParams
from exactlm.llm import RequestOutput, StreamDelta, Ticket
from exactlm.server.errors import ApiError, make_error
from exactlm.server.loop import EngineLoop, News
from exactlm.server.reading import ClientGoneError
from exactlm.server.room import Room

LAST_SECONDS = 5.0  # for the last bytes of a request that was ended
GONE_STATUS = 499  # in the log and the metrics: the asker left before the answer


class Exchange:
    """A request under way. `changed` is set when there is something new to look at."""

    def __init__(self, endpoint: str, id_prefix: str) -> None:
        self.endpoint = endpoint
        self.id = id_prefix + secrets.token_hex(12)
        self.arrival, self.created = time.monotonic(), int(time.time())
        self.wants_deltas = False
        self.is_streaming = False
        self.tickets: list[Ticket] = []
        self.num_reserved = 0  # answers that it takes up room for
        self.body: dict[str, Any] | None = None
        self.outputs: list[RequestOutput] = []
        self.params: SamplingParams | None = None
        self.status = 0  # HTTP's, when it has ended
        self.error: ApiError | None = None
        self.is_recorded = False  # its receipts were given to the ledger
        self.recording: asyncio.Task[None] | None = None  # of a stream that ended early
        self.abort: Callable[[], None] | None = None  # drops the connection, with what it has not taken
        self._last: asyncio.TimerHandle | None = None
        self.changed = asyncio.Event()
        self.is_quiet = True  # no byte was sent since the last tick
        self._failure: Exception | None = None
        self._is_over = False
        self._deltas: list[tuple[int, StreamDelta]] = []
        self._num_open = 1  # until expect() tells how many
        self._lock = threading.Lock()

    def reserve(self, room: Room, count: int) -> None:
        """Takes up room for its answers. ApiError; ClientGoneError if the request is over by now."""
        with self._lock:
            if self._is_over:
                raise ClientGoneError
            room.enter(count)
            self.num_reserved = count

    def leave(self, room: Room) -> None:
        """Gives its room back, if it has not yet."""
        with self._lock:
            room.leave(self.num_reserved)
            self.num_reserved = 0

    def attach(self, loop: EngineLoop, tickets: list[Ticket]) -> None:
        """Notes what was submitted; cancels it at once if the request is over by now."""
        with self._lock:
            self.tickets = tickets
            if not self._is_over:
                return
        loop.cancel(tickets)

    def expect(self, count: int) -> None:
        """States how many tickets will be told of, before the first can be."""
        self._num_open = count

    def take(self, news: News) -> None:
        """Takes in what the engine's thread tells."""
        if news.error is not None:
            self.fail(news.error)
            return
        self._deltas += [(news.place, delta) for delta in news.deltas]
        self._num_open -= news.is_done
        self.changed.set()

    def fail(self, error: Exception) -> None:
        """Ends the request with an error, unless it has one already."""
        if self._failure is None:
            self._failure = error
        self.changed.set()

    def end(self, error: Exception) -> None:
        """Ends the request for good: a reader that takes nothing is cut off a little later."""
        self.fail(error)
        if self._last is None and self.abort is not None:
            self._last = asyncio.get_running_loop().call_later(LAST_SECONDS, self.abort)

    @property
    def is_done(self) -> bool:
        """Whether every answer is complete."""
        return self._num_open == 0

    def check(self) -> None:
        """Raises what the request failed with: ApiError or ClientGoneError."""
        if isinstance(self._failure, ClientGoneError):
            raise self._failure
        if self._failure is not None:
            raise make_error(self._failure) from self._failure

    def take_deltas(self) -> list[tuple[int, StreamDelta]]:
        """What came since the last call, as (prompt, piece)."""
        taken, self._deltas = self._deltas, []
        return taken

    async def wait(self) -> None:
        """Returns when something is new; raises what the request failed with."""
        await self.changed.wait()
        self.changed.clear()
        self.check()

    def close(self, loop: EngineLoop, room: Room) -> None:
        """Ends the engine's work on it, and gives its room back."""
        if self._last is not None:
            self._last.cancel()
        with self._lock:
            self._is_over = True
            unfinished = [ticket for ticket in self.tickets if not ticket.is_done]
        self.leave(room)
        if unfinished and self.recording is None:  # what is recorded is cut, which may be still to come
            loop.cancel(unfinished)
