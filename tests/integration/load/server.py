"""A real `exactlm serve` process: started, watched, asked for its metrics, killed."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import httpx
import psutil

from tests.integration.load.client import connect

START_S = 60.0
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


class Server:
    """`exactlm serve MODEL --port ... OPTIONS` from the moment it is ready until the block ends."""

    def __init__(self, model: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "exactlm", "serve", str(model), "--port", str(self.port), *options]

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(self._command)
        end = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{' '.join(self._command)} is not ready (status {self._process.returncode})")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def is_ready(self) -> bool:
        try:
            return httpx.get(self.url + "/ready", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """SIGKILL: no chance to finish anything."""
        self._process.kill()
        self._process.wait()

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss)

    @property
    def model_name(self) -> str:
        """As the server calls it."""
        (model,) = httpx.get(self.url + "/v1/models", timeout=30, trust_env=False).json()["data"]
        return str(model["id"])

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics without labels, by name."""
        return parse_metrics(httpx.get(self.url + "/metrics", timeout=30, trust_env=False).text)


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of the Prometheus text format by name (and labels, as written)."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


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
