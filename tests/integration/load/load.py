"""A whole load against a server: the answers, and what its metrics say of the time it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.integration.load.client import Answer, connect
from tests.integration.load.replay import replay
from tests.integration.load.server import METRICS, Watch
from tests.integration.load.workload import Request
from tests.integration.server.process import ServerProcess


@dataclass(frozen=True)
class Load:
    """`before`, `after`: all metrics; `peak`: the highest value of each in between."""

    answers: list[Answer]
    before: dict[str, float]
    after: dict[str, float]
    peak: dict[str, float]

    def count(self, name: str) -> float:
        """By how much a counter of METRICS grew."""
        return self.after[METRICS[name]] - self.before.get(METRICS[name], 0.0)

    def highest(self, name: str) -> float:
        """The highest value of a gauge of METRICS that was seen."""
        return self.peak[METRICS[name]]


async def run_load(server: ServerProcess, requests: Sequence[Request]) -> Load:
    """Replays the requests once."""
    before = server.metrics()
    async with connect(server.url) as client, Watch(server.url) as watch:
        answers = await replay(client, requests)
    return Load(answers, before, server.metrics(), watch.highest)


async def run_until_killed(server: ServerProcess, requests: Sequence[Request], num_answers: int) -> list[Answer]:
    """Replays the requests, and kills the server the moment so many are answered; what was not has a failure."""

    def kill(count: int) -> None:
        if count == num_answers:
            server.kill()

    async with connect(server.url) as client:
        return await replay(client, requests, kill)
