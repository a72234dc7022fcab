"""The parent's side of worker.py: starts one, asks it, ends it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """A running worker. `facts`: what it said of itself; `ready_s`: seconds from its start to that; `imported_bytes`:
    resident before the model was loaded."""

    def __init__(self, python: str, engine: str, model: Path, threads: int, num_streams: int = 1) -> None:
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [python, str(WORKER), engine, str(model), str(threads), str(num_streams)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "imported"
        self.imported_bytes = psutil.Process(self._process.pid).memory_info().rss
        self.facts: dict[str, Any] = self._ask(None)
        self.ready_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, task: str, *counts: int) -> float:
        """Seconds of a task, a method of worker.py's Engine, with its counts."""
        return float(self._ask([task, *counts]))

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended with {self._process.wait()}")  # type: ignore[arg-type]
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
