"""The parent's side of worker.py: starts one, asks it, ends it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """A running worker. `facts`: what it said of itself; `ready_s`: seconds to that from its start, interpreter included."""

    def __init__(self, python: str, engine: str, model: Path, threads: int) -> None:
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [python, str(WORKER), engine, str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts: dict[str, Any] = self._answer()
        self.ready_s = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, task: str, count: int) -> float:
        """Seconds of a task, "prefill" or "decode", over `count` tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([task, count]) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

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
