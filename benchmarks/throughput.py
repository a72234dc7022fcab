"""Aggregate tokens per second of several greedy streams at once, beside llama.cpp's batched decode.

Both engines stay loaded and rounds alternate, as in speed.py; README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import FACTS, PAIRS, PAUSE_S, Timed, describe_machine
from process import Worker
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
TASKS = {"decode": "decode_streams", "answer": "answer_streams"}


@dataclass(frozen=True)
class Comparison(Timed):
    """One task; the tokens are of all streams together."""

    task: str
    num_streams: int
    threads: int


def main() -> None:
    a = parse_arguments()
    if not a.no_peer and a.peer_python is None:
        sys.exit("--peer-python is needed: an interpreter with llama-cpp-python (or --no-peer)")
    load = os.getloadavg()[0]
    facts: dict[str, Any] = {}
    comparisons: list[Comparison] = []
    for threads in a.threads:
        for num_streams in a.streams:
            comparisons += compare(a, threads, num_streams, facts)
            if a.json:
                write_json(a.json, facts, load, comparisons)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(make_table(a.precision, comparisons))
    for name, value in {**facts, "machine": describe_machine(load)}.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)


def write_json(path: Path, facts: dict[str, Any], load: float, comparisons: list[Comparison]) -> None:
    """All seconds so far: a long run that is ended keeps what it has."""
    results = [c.values() for c in comparisons]
    path.write_text(
        json.dumps({"facts": facts, "machine": describe_machine(load), "results": results}, indent=1) + "\n"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter that has llama-cpp-python")
    parser.add_argument("--no-peer", action="store_true", help="time exactlm only")
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "models", help="our model directories")
    parser.add_argument("--peer-models", type=Path, default=ROOT / ".cache" / "peer", help="made by peer_models.py")
    parser.add_argument("--precision", choices=PAIRS, default="int8")
    parser.add_argument("--streams", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--tokens", type=int, default=64, help="of each stream; at most 150")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true", help="count processor seconds; for one thread")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds")
    a = parser.parse_args()
    if a.cpu_time:
        if a.threads != [1]:
            parser.error("--cpu-time goes with --threads 1: threads that wait for each other also use processor time")
        os.environ["BENCHMARK_CLOCK"] = "cpu"
    return a


def compare(a: argparse.Namespace, threads: int, num_streams: int, facts: dict[str, Any]) -> list[Comparison]:
    """Both tasks at one number of streams; each engine leads every second round, and the first round is dropped."""
    ours = Worker(sys.executable, "exactlm", a.models / f"smollm2-135m-{a.precision}", threads, num_streams)
    workers = {"ours": ours}
    if not a.no_peer:
        model = a.peer_models / f"smollm2-135m-{PAIRS[a.precision]}.gguf"
        workers["peer"] = Worker(a.peer_python, "llama.cpp", model, threads, num_streams)
    facts |= {name: {k: v for k, v in worker.facts.items() if k in FACTS} for name, worker in workers.items()}
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for turn in range(a.rounds + 1):
        for task, method in TASKS.items():
            for name in list(workers)[:: 1 if turn % 2 else -1]:
                time.sleep(PAUSE_S)
                seconds[task, name].append(workers[name].ask(method, num_streams, a.tokens))
    for worker in workers.values():
        worker.__exit__(None, None, None)
    count = num_streams * a.tokens
    return [
        Comparison(count, seconds[task, "ours"][1:], seconds[task, "peer"][1:], task, num_streams, threads)
        for task in TASKS
    ]


def make_table(precision: str, comparisons: list[Comparison]) -> Table:
    """Tokens per second of all streams together and the ratio of times within a round."""
    title = f"{precision} / {PAIRS[precision]}: tokens per second of all streams, median (min-max)"
    table = Table(title=title)
    for heading in ("task", "streams", "threads", "exactlm", "llama.cpp", "ratio", "best/best"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for c in comparisons:
        table.add_row(c.task, str(c.num_streams), str(c.threads), *c.cells())
    return table


if __name__ == "__main__":
    main()
