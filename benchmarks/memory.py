"""What a loaded model costs: resident memory against the file and the KV cache in use, and the time to start.

Each measurement is a fresh process. The model file is read once before, so that it lies in the page cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import psutil
from process import Worker
from rich.console import Console
from rich.table import Table
from speed import PAIRS, spread

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
    parser.add_argument("--threads", type=int, default=2)
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
    Console(width=None if sys.stdout.isatty() else 140).print(make_table(rows))
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(python: str, engine: str, model: Path, weights: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Medians over fresh processes; bytes and seconds."""
    file_bytes = len(weights.read_bytes())
    resident: list[float] = []
    own: list[float] = []
    load: list[float] = []
    start: list[float] = []
    kv_bytes = 0
    for _ in range(a.repeats):
        with Worker(python, engine, model, a.threads) as worker:
            first = worker.ask("prefill", FIRST)
            load.append(worker.facts["load_s"] + first)
            start.append(worker.ready_s + first)
        with Worker(python, engine, model, a.threads) as worker:
            worker.ask("prefill", PREFILL)
            worker.ask("decode", DECODE)
            memory = psutil.Process(worker.pid).memory_info()
            resident.append(memory.rss)
            own.append(memory.rss - memory.shared)
            kv_bytes = worker.facts.get("kv_bytes_per_token", 0) * -(-PREFILL // PAGE) * PAGE
    return {
        "engine": engine,
        "model": model.name,
        "file_bytes": file_bytes,
        "kv_bytes": kv_bytes,
        "resident_bytes": resident,
        "own_bytes": own,
        "load_to_first_token_s": load,
        "start_to_first_token_s": start,
    }


def make_table(rows: list[dict[str, Any]]) -> Table:
    """One row for each engine and model."""
    table = Table(title=f"MiB after a prefill of {PREFILL} and {DECODE} decoded tokens; seconds: median (min-max)")
    for heading in (
        "engine",
        "model",
        "file",
        "KV in use",
        "resident",
        "resident - file - KV",
        "of it not file-backed",
    ):
        table.add_column(heading, justify="right")
    table.add_column("load to first token, s", justify="right")
    table.add_column("process start to first token, s", justify="right")
    for row in rows:
        resident = statistics.median(row["resident_bytes"])
        sizes = [row["file_bytes"], row["kv_bytes"], resident, resident - row["file_bytes"] - row["kv_bytes"]]
        cells = [f"{size / MIB:.1f}" for size in (*sizes, statistics.median(row["own_bytes"]))]
        if not row["kv_bytes"]:  # llama.cpp allocates its whole context at the start
            cells[1] = "in resident"
        times = [spread(row[key], ".2f") for key in ("load_to_first_token_s", "start_to_first_token_s")]
        table.add_row(row["engine"], row["model"], *cells, *times)
    return table


if __name__ == "__main__":
    main()
