"""A real `exactlm serve` process on a free port, and plain HTTP to it by http.client: no client library's habits."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

WAIT_S = 60.0
ADDRESS = re.compile(r" on http://([\d.]+):(\d+) ")
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
# The NumPy definition takes 4 to 20 ms a step: on it, answers last although the model is tiny.
SLOW = ("--isa", "reference", "--warmup", "0")
LASTING = {"prompt": "the thing", "max_tokens": 8000, "ignore_eos": True}


class Reply(NamedTuple):
    """One response."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; it has OpenAI's shape."""
        detail: dict[str, Any] = self.json["error"]
        assert set(detail) == {"message", "type", "param", "code"}
        assert isinstance(detail["message"], str)
        return detail

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a stream, which ended as it should."""
        lines = [line for line in self.data.decode("ascii").split("\n\n") if line and not line.startswith(":")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


class ServerProcess:
    """The server from the moment it is ready until the block ends; `output` is what it printed."""

    def __init__(self, model: Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "exactlm", "serve", str(model), "--port", "0", "--threads", "1", *options]
        self.output = ""
        self._is_ready = threading.Event()
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.output += line
            if ADDRESS.search(line):
                self._is_ready.set()
        self._is_ready.set()  # it has ended: there is nothing to wait for

    def __enter__(self) -> ServerProcess:
        found = ADDRESS.search(self.output) if self._is_ready.wait(WAIT_S) else None
        if found is None:
            self.process.kill()
            raise AssertionError(f"the server is not ready: {self.output}")
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.wait()
        finally:
            self.process.kill()
            self._reader.join(WAIT_S)
            assert self.process.stderr is not None
            self.process.stderr.close()

    def wait(self) -> int:
        """The exit status, once it ends."""
        return self.process.wait(WAIT_S)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=WAIT_S)

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Reply:
        with closing(self.connect()) as connection:
            connection.request(method, path, headers=headers or {})
            return read_reply(connection)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        """`body`: bytes as they are, everything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        with closing(self.connect()) as connection:
            connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
            return read_reply(connection)

    def stream(self, path: str, body: dict[str, Any]) -> Reply:
        return self.post(path, {**body, "stream": True})

    @contextmanager
    def open_stream(self, path: str, body: dict[str, Any]) -> Iterator[Iterator[bytes]]:
        """The lines of a stream under way, as they come."""
        with closing(self.connect()) as connection:
            data = json.dumps({**body, "stream": True})
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            with closing(connection.getresponse()) as response:
                assert response.status == 200
                yield iter(response)

    def talk(self, data: bytes, seconds: float = WAIT_S) -> bytes:
        """What comes back for raw bytes until the server closes the connection."""
        with closing(socket.create_connection((self.host, self.port), timeout=seconds)) as made:
            made.sendall(data)
            parts = []
            while part := made.recv(65536):
                parts.append(part)
            return b"".join(parts)

    def kill(self) -> None:
        """SIGKILL: no chance to finish anything."""
        self.process.kill()
        self.wait()

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by name (and labels, as written)."""
        return parse_metrics(self.get("/metrics").data.decode())

    def metric(self, name: str) -> float:
        """A sample without labels."""
        return self.metrics()[name]

    def wait_for_metric(self, name: str, value: float) -> None:
        """Until a sample is at least so high."""
        wait_for(lambda: self.metric(name) >= value)

    def wait_for_output(self, words: str) -> None:
        """Until it has printed this: what is printed is read by a thread of its own."""
        wait_for(lambda: words in self.output)

    def wait_until_idle(self) -> None:
        """Until no request is under way and no page is used."""
        names = ("exactlm_open_requests", "exactlm_queue_length", "exactlm_running_sequences", "exactlm_kv_pages_used")

        def is_idle() -> bool:
            metrics = self.metrics()
            return not any(metrics[name] for name in names)

        wait_for(is_idle)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Fails after WAIT_S: nothing here may wait for ever."""
    end = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def parse_metrics(text: str) -> dict[str, float]:
    """Samples of the Prometheus text format by name (and labels, as written)."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def read_reply(connection: http.client.HTTPConnection) -> Reply:
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, headers, response.read())
