"""Engines as the benchmarks see them: something that opens under a condition and answers batches of questions.

Each engine runs in a process of its own, under an interpreter that has it. Knows the worker's lines; nothing of tasks.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from exactlm.bench.condition import Condition
from exactlm.bench.question import Answer, Choice, Question
from exactlm.errors import ConfigError
from exactlm.format.digest import sha256_file, sha256_json
from exactlm.format.reader import open_model

KINDS = ("exactlm", "llama.cpp", "torch")
DTYPES = ("float32", "bfloat16", "float16")
BOOT = (
    "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; import worker; del sys.path[0]; "
    "from worker.main import main; main()"
)


class Session(Protocol):
    """An engine with its model loaded under one condition."""

    facts: dict[str, Any]

    def ask(self, questions: Sequence[Question]) -> tuple[list[Answer], float]:
        """Answers of one batch, and the seconds it took."""

    def memory(self) -> dict[str, int]:
        """Bytes resident: `resident` now, `peak` so far, `private` of those now that no file backs."""

    def __enter__(self) -> Session: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    """What is measured. `name`: as the user called it. `identity`: a digest of the model, for the journal. `is_exact`:
    a spread would be a broken promise."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def is_exact(self) -> bool: ...

    def refuse(self, condition: Condition) -> str | None:
        """Why the condition cannot be varied with this engine; None where it can."""

    def open(self, condition: Condition, threads: int) -> Session:
        """The engine in a fresh process."""


@dataclass(frozen=True)
class WorkerEngine:
    """An engine by KIND:MODEL[:DTYPE], under the interpreter `python`."""

    name: str
    kind: str
    model: Path
    dtype: str
    python: str
    identity: str

    @property
    def is_exact(self) -> bool:
        """Whether a spread is a broken promise."""
        return self.kind == "exactlm"

    def refuse(self, condition: Condition) -> str | None:
        if condition.has_prefix_cache and self.kind != "exactlm":
            return f"{self.kind} is asked without a prefix cache here"
        return None

    def open(self, condition: Condition, threads: int) -> Session:
        return WorkerSession(self, condition, threads)


class WorkerSession:
    """A worker process; ends with the `with` block. ConfigError where it dies or refuses."""

    def __init__(self, engine: WorkerEngine, condition: Condition, threads: int) -> None:
        self._name, self._kind = engine.name, engine.kind
        numbers = [condition.threads or threads, condition.num_streams, int(condition.has_prefix_cache)]
        arguments = [engine.kind, str(engine.model), engine.dtype, *map(str, numbers)]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [engine.python, "-c", BOOT, str(Path(__file__).parent), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
            )
        except OSError as error:
            self._errors.close()
            raise ConfigError(f"--python {engine.python}: cannot be run: {error.strerror}") from None
        try:
            self.facts: dict[str, Any] = self._read()["facts"]
        except BaseException:
            self._end()
            raise

    def ask(self, questions: Sequence[Question]) -> tuple[list[Answer], float]:
        kind = "choice" if isinstance(questions[0], Choice) else "completion"
        asked = {"kind": kind, "questions": [q.to_wire() for q in questions]}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ConfigError(f"{self._name}: its process ended\n{self._tell_errors()}") from None
        reply = self._read()
        return [Answer.from_wire(a) for a in reply["answers"]], float(reply["seconds"])

    def memory(self) -> dict[str, int]:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        names = {"resident": "VmRSS", "peak": "VmHWM", "private": "RssAnon"}
        return {name: int(fields[field].split()[0]) * 1024 for name, field in names.items()}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):  # the last one may be cut short
            status = self._process.wait()
            raise ConfigError(f"{self._name}: its process ended with status {status}\n{self._tell_errors()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            hint = f"; name one that has it by --python {self._kind}=PATH" * ("ModuleNotFoundError" in reply["error"])
            raise ConfigError(f"{self._name}: {reply['error']}{hint}")
        return reply

    def _tell_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # of what was not yet written
                pipe.close()
        self._errors.close()

    def __enter__(self) -> WorkerSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


def read_engine(spec: str, pythons: Mapping[str, str]) -> WorkerEngine:
    """An engine by its spec. pythons: interpreter by kind, and under "" the one for peers that are not named."""
    kind, _, rest = spec.partition(":")
    if kind not in KINDS or not rest:
        raise ConfigError(f"--engine {spec}: use exactlm:DIR, llama.cpp:FILE or torch:DIR[:DTYPE]")
    dtype = "float32"
    if kind == "torch" and ":" in rest:
        rest, _, dtype = rest.rpartition(":")
        if dtype not in DTYPES:
            raise ConfigError(f"--engine {spec}: no dtype {dtype}; use one of {', '.join(DTYPES)}")
    python = sys.executable if kind == "exactlm" else pythons.get(kind) or pythons.get("") or sys.executable
    model = Path(rest).resolve()
    return WorkerEngine(spec, kind, model, dtype, python, _identify(kind, model))


def _identify(kind: str, model: Path) -> str:
    """What says that a model is the same: our fingerprint, a file's SHA-256, or names, sizes and times of a folder."""
    if kind == "exactlm":
        return open_model(model).fingerprint
    if kind == "llama.cpp":
        if not model.is_file():
            raise ConfigError(f"{model}: no such file")
        return sha256_file(model)
    if not model.is_dir():
        raise ConfigError(f"{model}: no such directory")
    stats = {path.name: path.stat() for path in sorted(model.iterdir()) if path.is_file()}
    return sha256_json({name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()})
