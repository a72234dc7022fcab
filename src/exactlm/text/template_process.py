"""Starts the template worker, sends it requests and ends it when it takes too long.

A process, not checks inside ours: a template's one expression can build a gigabyte or loop in C code, where no check of
ours runs; the kernel's limits hold everywhere. The worker is kept between calls (about 1 ms each, 0.1 s for the
first). Knows nothing of messages or tokens.
"""

import atexit
import contextlib
import json
import os
import select
import struct
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exactlm.errors import TemplateError

RENDER_SECONDS = 4
MEMORY_BYTES = 256 * 2**20
MAX_OUTPUT_CHARS = 4_000_000
_START_SECONDS = 30.0
_MAX_REPLY_BYTES = 12 * MAX_OUTPUT_CHARS + 2**20  # a character is at most twelve ASCII bytes of JSON
_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateProcess:
    """One worker process, started when first needed and again after a failure or a fork. Calls are taken in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the worker's answer to `request`; TemplateError says why there is none."""
        limits = {"seconds": RENDER_SECONDS, "memory_bytes": MEMORY_BYTES, "max_chars": MAX_OUTPUT_CHARS}
        body = json.dumps({**request, **limits}).encode("ascii")
        with self._lock:
            process = self._get_process()
            try:
                reply = self._exchange(process, body)
            except BaseException:
                self._end()
                raise
            if "error" in reply:
                self._end()  # its memory may be exhausted
                raise TemplateError(f"the chat template fails: {reply['error']}")
            return reply

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            self._end()

    def _get_process(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        self._end()
        if not sys.executable:
            raise TemplateError("chat templates are rendered in a Python process, but sys.executable is empty")
        specs = [find_spec(name) for name in ("jinja2", "markupsafe")]  # only the worker imports them
        folders = {str(Path(str(spec.origin)).parent.parent) for spec in specs if spec is not None}
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER), *sorted(folders)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**kept, "TZ": "UTC"}, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise TemplateError(f"cannot start the process that renders chat templates: {error}") from None
        self._owner = os.getpid()
        # Starting is ours, not the template's: an empty template answers when the worker is ready.
        marks = {"spelling": {}, "prefix": "", "suffix": ""}
        empty = {"template": "", "marks": marks, "now": "2024-01-01", "special_tokens": {}, "variables": {}}
        limits = {"seconds": RENDER_SECONDS, "memory_bytes": MEMORY_BYTES, "max_chars": MAX_OUTPUT_CHARS}
        try:
            self._exchange(self._process, json.dumps({**empty, **limits}).encode("ascii"), _START_SECONDS)
        except BaseException:
            self._end()
            raise
        return self._process

    def _exchange(
        self, process: "subprocess.Popen[bytes]", body: bytes, seconds: float = RENDER_SECONDS
    ) -> dict[str, Any]:
        assert process.stdin is not None
        try:
            process.stdin.write(struct.pack(">Q", len(body)) + body)
            process.stdin.flush()
        except OSError:
            raise TemplateError("the process that renders chat templates ended unexpectedly") from None
        deadline = time.monotonic() + seconds
        size = struct.unpack(">Q", self._read(process, 8, deadline))[0]
        if size > _MAX_REPLY_BYTES:
            raise TemplateError(f"the chat template's output takes {size} bytes, more than {_MAX_REPLY_BYTES}")
        reply: dict[str, Any] = json.loads(self._read(process, size, deadline))
        return reply

    def _read(self, process: "subprocess.Popen[bytes]", size: int, deadline: float) -> bytes:
        assert process.stdout is not None
        descriptor, chunks, missing = process.stdout.fileno(), [], size
        while missing > 0:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TemplateError(f"the chat template does not finish within {RENDER_SECONDS} seconds")
            chunk = os.read(descriptor, min(missing, 2**20))
            if not chunk:
                raise TemplateError(
                    f"the chat template ended its process: it exceeds {RENDER_SECONDS} seconds of processor time, "
                    f"{MEMORY_BYTES >> 20} MB of memory, or the depth that Python can compile"
                )
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._owner == os.getpid():
            process.kill()
            process.wait()
        else:
            process.returncode = 0  # our parent's child: leave it alone


PROCESS = TemplateProcess()
atexit.register(PROCESS.close)
