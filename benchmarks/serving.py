"""What the HTTP server costs: tokens per second of several streams through `exactlm serve`, beside the engine alone.

Both use the same model and threads and stay loaded; rounds alternate. README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
from comparison import PAUSE_S, spread
from process import Worker
from rich.console import Console
from rich.table import Table
from worker import STREAM_CONTEXT, STREAM_LENGTHS, make_prompts

ROOT = Path(__file__).parent.parent
START_S = 60.0


def main() -> None:
    a = parse_arguments()
    load = os.getloadavg()[0]
    engine_rates, server_rates = [], []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "exactlm", "serve", str(a.model), "--port", port, "--threads", str(a.threads)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    process = psutil.Process(server.pid)
    read_clock = (lambda: sum(process.cpu_times()[:2])) if a.cpu_time else time.perf_counter
    try:
        with Worker(sys.executable, "exactlm", a.model, a.threads, a.streams) as worker:
            wait_until_ready(f"http://127.0.0.1:{port}")
            for turn in range(a.rounds + 1):
                for kind in ("engine", "server")[:: 1 if turn % 2 else -1]:
                    time.sleep(PAUSE_S)
                    if kind == "engine":
                        seconds = worker.ask("decode_streams", a.streams, a.tokens)
                        engine_rates.append(a.streams * a.tokens / seconds)
                    else:
                        server_rates.append(asyncio.run(measure(f"http://127.0.0.1:{port}", a.streams, read_clock)))
    finally:
        server.terminate()
        server.wait()
    rates = engine_rates[1:], server_rates[1:]  # the first round warms caches and clocks
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(make_table(a, *rates))
    machine = {"processors": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()[0]}
    console.print(f"machine: {machine}", highlight=False, soft_wrap=True)
    if a.json:
        a.json.write_text(json.dumps({"machine": machine, "engine": rates[0], "server": rates[1]}, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "models" / "smollm2-135m-int8")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="of each stream that the engine alone is timed for")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="count the processor seconds of engine and server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's rates")
    a = parser.parse_args()
    if a.cpu_time:
        os.environ["BENCHMARK_CLOCK"] = "cpu"
    return a


def wait_until_ready(url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            if httpx.get(url + "/ready", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    sys.exit(f"the server is not ready after {START_S:.0f} s")


class Window:
    """The time in which all streams decode: from when the last has its first token to when one is complete."""

    def __init__(self, num_streams: int, read_clock: Callable[[], float]) -> None:
        self._num_waiting, self._read_clock = num_streams, read_clock
        self._begin = self._end = 0.0
        self._num_tokens = 0

    def take(self, num_tokens: int, is_first: bool, is_last: bool) -> None:
        """Notes an event of a stream."""
        if self._begin and not self._end:
            self._num_tokens += num_tokens
        self._num_waiting -= is_first
        if self._num_waiting == 0 and not self._begin:
            self._begin = self._read_clock()
        if is_last and not self._end:
            self._end = self._read_clock()

    @property
    def rate(self) -> float:
        """Tokens per second of all streams together."""
        return self._num_tokens / (self._end - self._begin)


async def measure(url: str, num_streams: int, read_clock: Callable[[], float]) -> float:
    """Tokens per second of all streams together, while all of them decode."""
    window = Window(num_streams, read_clock)
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        await asyncio.gather(*(receive(client, prompt, window) for prompt in make_prompts(num_streams)))
    return window.rate


async def receive(client: httpx.AsyncClient, prompt: list[int], window: Window) -> None:
    """Reads one stream to its end."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": STREAM_CONTEXT - STREAM_LENGTHS[1], "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    is_first = True
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                window.take(len(choice["token_ids"]), is_first, choice["finish_reason"] is not None)
                is_first = False


def make_table(a: argparse.Namespace, engine: list[float], server: list[float]) -> Table:
    """Tokens per second, and the time that the server adds to the engine's for each token, in percent."""
    title = f"{a.model.name}, {a.streams} streams, {a.threads} threads: tokens per second of all, median (min-max)"
    table = Table(title=title)
    for heading in ("engine", "server", "added time, %"):
        table.add_column(heading, justify="right")
    added = [100 * (alone / served - 1) for alone, served in zip(engine, server, strict=True)]
    table.add_row(spread(engine, ".0f"), spread(server, ".0f"), spread(added, ".1f"))
    return table


if __name__ == "__main__":
    main()
