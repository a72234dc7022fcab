"""Capacities of a server under load, and what its metrics show meanwhile."""

from __future__ import annotations

import asyncio
from types import TracebackType

from tests.integration.load.client import connect
from tests.integration.server.process import parse_metrics

# What the tests look at, and its name in /metrics.
METRICS = {
    "waiting": "exactlm_queue_length",
    "running": "exactlm_running_sequences",
    "pages_used": "exactlm_kv_pages_used",
    "preemptions": "exactlm_preemptions_total",
    "cached": "exactlm_cached_tokens_total",
    "accepted": "exactlm_accepted_tokens_total",
}


def capacity(
    kv_tokens: int | None = None,
    max_batch: int = 64,
    chunk_tokens: int = 512,
    prefix_cache: bool = True,
    speculation: str = "none",
    threads: int = 1,
) -> list[str]:
    """Command-line options of a capacity."""
    options = ["--max-batch", str(max_batch), "--chunk-tokens", str(chunk_tokens), "--threads", str(threads)]
    # A crowded machine is slow, and time limits are tested elsewhere.
    options += ["--speculation", speculation, "--request-seconds", "3600"]
    if kv_tokens is not None:
        options += ["--kv-tokens", str(kv_tokens)]
    return options if prefix_cache else [*options, "--no-prefix-cache"]


class Watch:
    """Highest values of gauges while the block runs, looked at every `pause_s` seconds."""

    def __init__(self, url: str, pause_s: float = 0.1) -> None:
        self._url, self._pause_s = url, pause_s
        self.highest: dict[str, float] = {}

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _look(self) -> None:
        async with connect(self._url) as client:
            while True:
                for name, value in parse_metrics((await client.get("/metrics")).text).items():
                    self.highest[name] = max(value, self.highest.get(name, value))
                await asyncio.sleep(self._pause_s)
