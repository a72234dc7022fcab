"""Sends a workload as its arrivals say, all in flight together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import httpx

from tests.integration.load.client import Answer, ask
from tests.integration.load.workload import Request


async def replay(
    client: httpx.AsyncClient, requests: Sequence[Request], on_answer: Callable[[int], None] = lambda count: None
) -> list[Answer]:
    """Answers in the order of the requests. on_answer: told after each how many have come."""
    begin, count = time.monotonic(), 0

    async def one(request: Request) -> Answer:
        nonlocal count
        await asyncio.sleep(max(0.0, begin + request.second - time.monotonic()))
        answer = await ask(client, request)
        count += 1
        on_answer(count)
        return answer

    return list(await asyncio.gather(*(one(request) for request in requests)))
