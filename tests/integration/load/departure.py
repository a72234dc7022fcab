"""Clients that leave before their answer is complete, at moments drawn from a seed, and one that stays."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.integration.load.client import TIMEOUT_S, Answer, ask, connect, leave
from tests.integration.load.workload import Request
from tests.integration.server.process import ServerProcess


@dataclass(frozen=True)
class Departure:
    """A request, and when its client leaves: after so many seconds, or after so many events of its stream."""

    request: Request
    after_s: float
    after_events: int | None


def make_departures(requests: Sequence[Request], count: int, longest_s: float) -> list[Departure]:
    """Half of them stream; of those, half leave after a number of events, however long that takes."""
    chance = random.Random(4)
    departures = []
    for i in range(count):
        request = requests[i % len(requests)]
        body = {k: v for k, v in request.body.items() if k not in ("stream", "stream_options")}
        if is_streaming := chance.random() < 0.5:
            body["stream"] = True
        num_events = chance.randint(1, 12) if is_streaming and chance.random() < 0.5 else None
        request = replace(request, index=i, body=body)
        departures.append(Departure(request, TIMEOUT_S if num_events else chance.uniform(0, longest_s), num_events))
    return departures


async def time_together(server: ServerProcess, requests: Sequence[Request]) -> float:
    """Seconds until all of them are answered: what a client's patience is measured by."""
    begin = time.monotonic()
    async with connect(server.url) as client:
        await asyncio.gather(*(ask(client, request) for request in requests))
    return time.monotonic() - begin


async def depart(
    server: ServerProcess, departures: Sequence[Departure], bystander: Request, num_at_once: int
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
