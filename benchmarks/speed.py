"""exactlm beside llama.cpp: decode and prefill of the same model, rounds of the two engines alternating.

Times are compared within a round, so what the machine does meanwhile hits both; README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import FACTS, PAIRS, PAUSE_S, Timed, describe_machine
from process import Worker
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parent.parent
TASKS = {"decode": 128, "prefill": 512}  # tokens


@dataclass(frozen=True)
class Comparison(Timed):
    """One task, precision and thread count."""

    task: str
    precision: str
    threads: int


def main() -> None:
    a = parse_arguments()
    console = Console(width=None if sys.stdout.isatty() else 140)
    if not a.no_peer and a.peer_python is None:
        sys.exit("--peer-python is needed: an interpreter with llama-cpp-python (or --no-peer)")
    load = os.getloadavg()[0]
    facts: dict[str, Any] = {}
    comparisons: list[Comparison] = []
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        bar = progress.add_task("rounds", total=len(a.precision) * len(a.threads) * (a.rounds + 1))
        for precision in a.precision:
            for threads in a.threads:
                comparisons += compare(a, precision, threads, facts, lambda: progress.advance(bar))
    console.print(make_table(comparisons))
    machine = describe_machine(load)
    for name, value in {**facts, "machine": machine}.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
    if a.json:
        result = [c.values() for c in comparisons]
        a.json.write_text(json.dumps({"facts": facts, "machine": machine, "results": result}, indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter that has llama-cpp-python")
    parser.add_argument("--no-peer", action="store_true", help="time exactlm only")
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "models", help="our model directories")
    parser.add_argument("--peer-models", type=Path, default=ROOT / ".cache" / "peer", help="made by peer_models.py")
    parser.add_argument("--precision", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's seconds")
    return parser.parse_args()


def compare(
    a: argparse.Namespace, precision: str, threads: int, facts: dict[str, Any], advance: Callable[[], None]
) -> list[Comparison]:
    """All tasks of one precision and thread count; both engines stay loaded, and each leads every second round."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        model = a.models / f"smollm2-135m-{precision}"
        workers = {"ours": stack.enter_context(Worker(sys.executable, "exactlm", model, threads))}
        if not a.no_peer:
            model = a.peer_models / f"smollm2-135m-{PAIRS[precision]}.gguf"
            workers["peer"] = stack.enter_context(Worker(a.peer_python, "llama.cpp", model, threads))
        facts |= {name: {k: v for k, v in worker.facts.items() if k in FACTS} for name, worker in workers.items()}
        for turn in range(a.rounds + 1):
            for task, count in TASKS.items():
                for name in list(workers)[:: 1 if turn % 2 else -1]:
                    time.sleep(PAUSE_S)
                    seconds[task, name].append(workers[name].ask(task, count))
            advance()
    # The first round warms caches and clocks.
    return [
        Comparison(count, seconds[task, "ours"][1:], seconds[task, "peer"][1:], task, precision, threads)
        for task, count in TASKS.items()
    ]


def make_table(comparisons: list[Comparison]) -> Table:
    """Tokens per second (median, then min to max over rounds) and the ratio of times within a round."""
    table = Table(title="tokens per second: median (min-max); ratio: above 1 exactlm is faster")
    for heading in ("task", "pair", "threads", "exactlm", "llama.cpp", "ratio", "best/best"):
        table.add_column(heading, justify="left" if heading in ("task", "pair") else "right")
    for c in comparisons:
        pair = f"{c.precision} / {PAIRS[c.precision]}"
        table.add_row(f"{c.task} {c.num_tokens}", pair, str(c.threads), *c.cells())
    return table


if __name__ == "__main__":
    main()
