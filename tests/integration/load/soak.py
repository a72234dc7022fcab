"""Minutes of load against one server, and whether its memory stays flat and its answers right.

    python -m tests.integration.load.soak MODEL --minutes 20 [--json FILE]

Run from the checkout. Every lap replays the trace; between its requests, clients leave before their answer is complete.
Exit status 1: memory grew, a page stayed in use, or an answer was not that of the request alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from tests.conftest import data_file
from tests.integration.load.client import connect
from tests.integration.load.departure import Departure, depart, make_departures
from tests.integration.load.reference import Reference, find_differences
from tests.integration.load.replay import replay
from tests.integration.load.server import METRICS, capacity
from tests.integration.load.trace import FILE, read_arrivals
from tests.integration.load.workload import SETTINGS, Request, Size, make_requests, read_texts
from tests.integration.server.process import ServerProcess

SAMPLE_S = 10.0
NUM_REQUESTS = 60
MIB = 1 << 20
# A leak of one KiB a request shows in 20 minutes on the slowest machine; the allocator's own unrest does not.
ALLOWED_BYTES, ALLOWED_SHARE = 2 * MIB, 0.01
SIZE = Size(
    prompt_divisor=10,
    max_prompt=100,
    answer_divisor=14,
    max_answer=24,
    time_divisor=2,
    settings=[s for s in SETTINGS if s.get("seed", 0) is not None],  # drawn seeds would be new at every lap
)


def measure_growth(samples: Sequence[int]) -> tuple[float, float]:
    """(bytes by which memory grew, bytes allowed): medians of the third and the last quarter. The first half warms up:
    caches fill and the allocator finds its size."""
    if len(samples) < 8:
        raise ValueError(f"{len(samples)} samples of memory are too few: run for longer")
    quarter = len(samples) // 4
    early, late = statistics.median(samples[-2 * quarter : -quarter]), statistics.median(samples[-quarter:])
    return late - early, ALLOWED_BYTES + ALLOWED_SHARE * early


async def sample_memory(server: ServerProcess, samples: list[int], pause_s: float) -> None:
    while True:
        samples.append(int(psutil.Process(server.process.pid).memory_info().rss))
        await asyncio.sleep(pause_s)


async def soak(
    server: ServerProcess, requests: Sequence[Request], reference: Reference, minutes: float, console: Console
) -> tuple[list[int], list[str]]:
    """Memory samples and differences of laps until the time is over."""
    end, samples, differences = time.monotonic() + minutes * 60, list[int](), list[str]()
    leaving: list[Departure] = make_departures([r for r in requests if r.body["max_tokens"] > 4], 20, longest_s=3.0)
    sampling = asyncio.create_task(sample_memory(server, samples, SAMPLE_S))
    lap = 0
    async with connect(server.url) as client:
        while time.monotonic() < end:
            gone = asyncio.create_task(depart(server, leaving, requests[0], num_at_once=4))
            answers = await replay(client, requests)
            _, stayed = await gone
            differences += find_differences(requests, answers, reference)
            differences += find_differences([requests[0]] * len(stayed), stayed, reference)
            lap += 1
            console.print(
                f"lap {lap}: {samples[-1] / MIB:.1f} MiB, {len(differences)} differences, "
                f"{server.metrics()[METRICS['preemptions']]:.0f} preemptions",
                highlight=False,
            )
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    return samples, differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample")
    a = parser.parse_args()
    console = Console(soft_wrap=True)
    reference = Reference(a.model)
    arrivals = read_arrivals(data_file(FILE), NUM_REQUESTS)
    requests = make_requests(arrivals, read_texts(data_file), reference.llm.tokenizer, SIZE)
    console.print(f"{len(requests)} requests, each alone first")
    for request in requests:
        reference.answer(request, request.body.get("seed"))
    options = capacity(kv_tokens=512, max_batch=32, chunk_tokens=128, speculation="ngram", threads=a.threads)
    with ServerProcess(a.model, *options) as server:
        samples, differences = asyncio.run(soak(server, requests, reference, a.minutes, console))
        server.wait_until_idle()
        metrics = server.metrics()
    growth, allowed = measure_growth(samples)
    for line in differences[:10]:
        console.print(line)
    console.print(
        f"{a.minutes:g} minutes, {len(samples)} samples of {min(samples) / MIB:.1f} to {max(samples) / MIB:.1f} MiB; "
        f"growth {growth / MIB:+.2f} MiB, allowed {allowed / MIB:.2f}; {len(differences)} differences",
        highlight=False,
    )
    if a.json:
        a.json.write_text(json.dumps({"resident_bytes": samples, "growth": growth, "metrics": metrics}) + "\n")
    sys.exit(1 if differences or growth > allowed else 0)


if __name__ == "__main__":
    main()
