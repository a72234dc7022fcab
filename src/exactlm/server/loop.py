"""The thread that steps the engine, and tells after each step, in one message, what every request has gained.

Sleeps while there is nothing to do. A step that fails ends its requests, never the thread. Knows nothing of HTTP; whom
a request belongs to is an opaque owner.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from exactlm.engine.sampling_params import SamplingParams
from exactlm.llm import LLM, StreamDelta, Ticket
from exactlm.prompt import Prompt

_LOG = logging.getLogger("exactlm.server")
_STOP_SECONDS = 10.0


class Owner(Protocol):
    """Who asked. `wants_deltas`: tell of every piece, not only of the end."""

    wants_deltas: bool


class News(NamedTuple):
    """What the request `place` of an owner has gained. `error`: it failed, and is done."""

    owner: Any
    place: int
    deltas: list[StreamDelta]
    is_done: bool
    error: Exception | None


@dataclass(eq=False)
class _Watched:
    ticket: Ticket
    owner: Owner
    place: int
    is_told: bool = False  # of the end


class EngineLoop:
    """Steps `llm` in a thread of its own. `deliver` is called there with what a step brought, if anything."""

    def __init__(self, llm: LLM, deliver: Callable[[list[News]], None]) -> None:
        self._llm, self._deliver = llm, deliver
        self._watched: list[_Watched] = []
        self._cuts: list[tuple[list[Ticket], Future[None]]] = []
        self._changed = threading.Condition()
        self._has_work = False
        self._is_closed = False
        self.num_failed_steps = 0
        self._thread = threading.Thread(target=self._run, name="exactlm-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the step under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(_STOP_SECONDS)

    @property
    def is_alive(self) -> bool:
        """Whether requests are still answered."""
        return self._thread.is_alive()

    def submit(
        self, prompts: Sequence[Prompt], params: SamplingParams, owner: Owner, has_receipts: bool = False
    ) -> list[Ticket]:
        """Queues the prompts of one owner, all or none. has_receipts: of each answer. Thread-safe; RequestError,
        CapacityError."""
        tickets: list[Ticket] = []
        try:
            for prompt in prompts:
                tickets.append(self._llm.submit(prompt, params, has_receipts))
        except BaseException:
            self.cancel(tickets)
            raise
        with self._changed:
            self._watched += [_Watched(ticket, owner, place) for place, ticket in enumerate(tickets)]
            self._has_work = True
            self._changed.notify()
        return tickets

    def cancel(self, tickets: Sequence[Ticket]) -> None:
        """Ends requests that nobody waits for. Thread-safe."""
        for ticket in tickets:
            ticket.cancel()
        self._wake()

    def cut(self, tickets: Sequence[Ticket]) -> Future[None]:
        """Ends requests with what they have (Ticket.cut) before the next step; done when they have ended. Thread-safe.
        Fails with the first error, when each is cut or, where that failed, cancelled.

        The engine's thread does it: another one that waits for the engine between two steps may miss several.
        """
        result: Future[None] = Future()
        result.set_running_or_notify_cancel()  # who has stopped waiting cannot take it back
        with self._changed:
            self._cuts.append((list(tickets), result))
            self._has_work = True
            self._changed.notify()
            if self._is_closed:
                self._refuse_cuts()
        return result

    def _refuse_cuts(self) -> None:
        for _, result in self._cuts:
            result.set_exception(RuntimeError("the engine's thread has ended"))
        self._cuts.clear()

    def _wake(self) -> None:
        with self._changed:
            self._has_work = True
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._work()
        finally:  # whatever ends the thread, nobody waits for it
            with self._changed:
                self._is_closed = True
                self._refuse_cuts()

    def _wait_for_work(self) -> bool:
        """False at the end."""
        with self._changed:
            while not self._has_work and not self._is_closed:
                self._changed.wait()
            self._has_work = False
            return not self._is_closed

    def _work(self) -> None:
        """Steps until there is nothing to do."""
        while not self._is_closed:
            failure: Exception | None = None
            self._cut_off()
            try:
                is_busy = self._llm.step()
            except Exception as error:
                _LOG.exception("a step of the engine failed")
                self.num_failed_steps += 1
                failure, is_busy = error, True
            news = self._collect()
            if failure is not None and not any(item.is_done for item in news):
                # The engine blames no request: to go on with these would fail for ever.
                news, is_busy = self._fail_all(failure), False
            if news:
                self._deliver(news)
            if not is_busy:
                return

    def _cut_off(self) -> None:
        with self._changed:
            cuts, self._cuts = self._cuts, []
        for tickets, result in cuts:
            failures = [error for ticket in tickets if (error := _cut(ticket)) is not None]
            if failures:
                result.set_exception(failures[0])
            else:
                result.set_result(None)

    def _collect(self) -> list[News]:
        with self._changed:
            watched = list(self._watched)
        news = [item for w in watched if (item := _read(w)) is not None]
        self._forget_told()
        return news

    def _fail_all(self, error: Exception) -> list[News]:
        with self._changed:
            watched = list(self._watched)
        for w in watched:
            w.is_told = True
            _cut(w.ticket)  # not cancelled: what was sent of it can still be recorded
        self._forget_told()
        return [News(w.owner, w.place, [], True, error) for w in watched]

    def _forget_told(self) -> None:
        with self._changed:
            self._watched = [w for w in self._watched if not w.is_told]


def _cut(ticket: Ticket) -> Exception | None:
    """Ends a request with what it has; where that fails it is cancelled, and this returns why."""
    try:
        ticket.cut()
    except Exception as error:
        with contextlib.suppress(Exception):  # it is noted before anything can fail, and done with the next step
            ticket.cancel()
        return error
    return None


def _read(watched: _Watched) -> News | None:
    ticket = watched.ticket
    if not watched.owner.wants_deltas and not all(answer.sequence.is_finished for answer in ticket.answers):
        return None
    try:
        deltas = ticket.poll()
    except Exception as error:
        watched.is_told = True
        return News(watched.owner, watched.place, [], True, error)
    watched.is_told = ticket.is_done  # also where a cut has taken the last pieces
    if not deltas:
        return None
    return News(watched.owner, watched.place, deltas, watched.is_told, None)
