"""What a loaded model costs: resident memory against the file and the KV cache in use, and the time to start.

Each measurement is a fresh process. The model file is read once before, so that it lies in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
from comparison import PAIRS, spread
from process import Worker
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PREFILL, DECODE, FIRST = 512, 32, 8  # tokens
PAGE = 32  # tokens of a page of our KV cache
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peer-python", help="interpreter that has llama-cpp-python; without it only exactlm is measured"
    )
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "models")
    parser.add_argument("--peer-models", type=Path, default=ROOT / ".cache" / "peer")
    parser.add_argument(
        "--model", type=Path, action="append", default=[], metavar="DIR", help="measure exactlm with this one too"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    a = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for precision, kind in PAIRS.items():
        model = a.models / f"smollm2-135m-{precision}"
        rows.append(measure(sys.executable, "exactlm", model, model / "model.safetensors", a))
        if a.peer_python:
            file = a.peer_models / f"smollm2-135m-{kind}.gguf"
            rows.append(measure(a.peer_python, "llama.cpp", file, file, a))
    for model in a.model:
        rows.append(measure(sys.executable, "exactlm", model, model / "model.safetensors", a))
    Console(width=None if sys.stdout.isatty() else 140).print(make_table(rows))
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(python: str, engine: str, model: Path, weights: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Bytes and seconds of every fresh process."""
    row: dict[str, Any] = {"engine": engine, "model": model.name, "file": read_through(weights)}
    seen: dict[str, list[float]] = defaultdict(list)
    for _ in range(a.repeats):
        with Worker(python, engine, model, a.threads) as worker:
            first = worker.ask("prefill", FIRST)
            seen["load_s"].append(worker.facts["load_s"] + first)
            seen["start_s"].append(worker.ready_s + first)
        with Worker(python, engine, model, a.threads) as worker:
            worker.ask("decode", DECODE, PREFILL)
            seen["resident"].append(psutil.Process(worker.pid).memory_info().rss)
            seen["imported"].append(worker.imported_bytes)
            pages = -(-(PREFILL + DECODE) // PAGE)
            row["kv"] = worker.facts.get("kv_bytes_per_token", 0) * pages * PAGE
    return {**row, **seen}


def read_through(file: Path) -> int:
    """Bytes of a file, which lies in the page cache afterwards."""
    with file.open("rb") as stream:
        return sum(len(block) for block in iter(lambda: stream.read(16 * MIB), b""))


def make_table(rows: list[dict[str, Any]]) -> Table:
    """One row for each engine and model."""
    title = (
        f"MiB resident after {PREFILL} prompt and {DECODE} decoded tokens; seconds to a first token, median (min-max)"
    )
    table = Table(title=title)
    for heading in ("", "file", "KV", "imports", "resident", "rest", "ratio", "from load", "from start"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in rows:
        imported, resident = statistics.median(row["imported"]), statistics.median(row["resident"])
        sizes = [row["file"], row["kv"], imported, resident, resident - row["file"] - row["kv"] - imported]
        cells = [f"{size / MIB:.1f}" for size in sizes] + [f"{resident / (row['file'] + row['kv']):.2f}"]
        if not row["kv"]:
            cells[1], cells[5] = "in rest", ""
        times = [spread(row[key], ".2f") for key in ("load_s", "start_s")]
        table.add_row(f"{row['engine']} {row['model']}", *cells, *times)
    return table


if __name__ == "__main__":
    main()
