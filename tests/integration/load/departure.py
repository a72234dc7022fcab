"""Clients that leave before their answer is complete, at moments drawn from a seed, and one that stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.integration.load.client import Answer, ask, connect, leave
from tests.integration.load.server import METRICS, Server
from tests.integration.load.workload import Request

IDLE_S = 20.0


@dataclass(frozen=True)
class Departure:
    """A request, and when its client leaves: after so many seconds, or events of its stream."""

    request: Request
    after_s: float
    after_events: int | None


def make_departures(requests: Sequence[Request], count: int, longest_s: float) -> list[Departure]:
    """Half of them stream; of those, half leave after a number of events."""
    chance = random.Random(4)
    departures = []
    for i in range(count):
        request = requests[i % len(requests)]
        body = {k: v for k, v in request.body.items() if k not in ("stream", "stream_options")}
        if is_streaming := chance.random() < 0.5:
            body["stream"] = True
        num_events = chance.randint(1, 12) if is_streaming and chance.random() < 0.5 else None
        request = replace(request, index=i, body=body)
        departures.append(Departure(request, longest_s if num_events else chance.uniform(0, longest_s), num_events))
    return departures


async def time_together(server: Server, requests: Sequence[Request]) -> float:
    """Seconds until all of them are answered: what a client's patience is measured by."""
    begin = time.monotonic()
    async with connect(server.url) as client:
        await asyncio.gather(*(ask(client, request) for request in requests))
    return time.monotonic() - begin


async def depart(
    server: Server, departures: Sequence[Departure], bystander: Request, num_at_once: int
) -> tuple[int, list[Answer]]:
    """Runs all departures, `num_at_once` together: how many left before the end, and the bystander's answers, who
    asks again and again meanwhile."""
    waiting, is_over = list(reversed(departures)), False
    left, answers = list[bool](), list[Answer]()

    async with connect(server.url) as client:

        async def come_and_go() -> None:
            while waiting:
                one = waiting.pop()
                left.append(await leave(client, one.request, one.after_s, one.after_events))

        async def stay() -> None:
            while not is_over:
                answers.append(await ask(client, bystander))

        staying = asyncio.create_task(stay())
        await asyncio.gather(*(come_and_go() for _ in range(num_at_once)))
        is_over = True
        await staying
    return sum(left), answers


def wait_until_idle(server: Server) -> dict[str, float]:
    """The metrics once nothing waits, runs or uses a page; AssertionError if that does not come."""
    end = time.monotonic() + IDLE_S
    while True:
        metrics = server.metrics()
        held = {name: metrics[METRICS[name]] for name in ("waiting", "running", "pages_used")}
        if not any(held.values()):
            return metrics
        assert time.monotonic() < end, f"still held {IDLE_S:.0f} s after the last client left: {held}"
        time.sleep(0.05)
