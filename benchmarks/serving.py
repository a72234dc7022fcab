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
from pathlib import Path
from typing import Any

import httpx
from process import Worker
from rich.console import Console
from rich.table import Table
from speed import PAUSE_S, spread
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
                        server_rates.append(asyncio.run(measure(f"http://127.0.0.1:{port}", a.streams)))
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's rates")
    return parser.parse_args()


def wait_until_ready(url: str) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            if httpx.get(url + "/ready", trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    sys.exit(f"the server is not ready after {START_S:.0f} s")


async def measure(url: str, num_streams: int) -> float:
    """Tokens per second of all streams together, while all of them decode."""
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as client:
        prompts = make_prompts(num_streams)
        streams = await asyncio.gather(*(receive(client, prompt) for prompt in prompts))
    begin, end = max(stream[0][0] for stream in streams), min(stream[-1][0] for stream in streams)
    count = sum(n for stream in streams for moment, n in stream if begin < moment <= end)
    return count / (end - begin)


async def receive(client: httpx.AsyncClient, prompt: list[int]) -> list[tuple[float, int]]:
    """(when, how many tokens) of every event of one stream."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": STREAM_CONTEXT - STREAM_LENGTHS[1], "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    events = []
    async with client.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                choices = json.loads(line.removeprefix("data: "))["choices"]
                events.append((now, sum(len(choice["token_ids"]) for choice in choices)))
    return events


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
