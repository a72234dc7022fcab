"""Real HTTP servers whose noise is known: what an audit must show, and what it must not invent.

Whether requests overlap is stated by the test with expect(), not left to the machine: a wave is answered when all of it
is there.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from exactlm.audit.comparison import common_length

WORDS = ["ash", "bay", "cod", "dew", "elm", "fig", "gum", "hay", "ivy", "jam", "kit", "log", "map", "nut", "oak", "pea"]


WAIT_S = 60.0


@dataclass
class Behaviour:
    """noise: "none"; "load", another word at position 3 in a wave of several; "always", at every request; "number",
    only a log-probability wanders. takes_seed, tells_logprobs: else status 400. heeds_seed: whether it matters.
    fails_every: so many-th requests get status 500; 0 for none. cache: "untold"; "none", 0 is told for every prompt;
    "kept", what prompts share with earlier ones is told, in characters; "cache_salt" and "cache_prompt", as "kept", and
    that field is heeded; "strict", as "kept", and a field that is not known gets status 400."""

    noise: str = "none"
    takes_seed: bool = True
    heeds_seed: bool = True
    tells_logprobs: bool = True
    fails_every: int = 0
    cache: str = "untold"


def answer_of(prompt: str, seed: int | None, count: int) -> list[str]:
    """The true answer: words chosen by a hash."""
    raw = hashlib.shake_256(f"{prompt}|{seed}".encode()).digest(count)
    return [f" {WORDS[byte % len(WORDS)]}" for byte in raw]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: ClassVar[Behaviour]
    counter: ClassVar[Iterator[int]]
    kept: ClassVar[list[tuple[object, str]]]
    wave: ClassVar[threading.Barrier] = threading.Barrier(1)

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wave = Handler.wave
        wave.wait(WAIT_S)
        self._answer(body, wave.parties > 1)

    def _answer(self, body: dict[str, Any], is_loaded: bool) -> None:
        like, number = self.behaviour, next(self.counter)
        if like.fails_every and number % like.fails_every == 0:
            return self._send(500, {"error": "out of luck"})
        if "seed" in body and not like.takes_seed:
            return self._send(400, {"error": "no seed here"})
        if body.get("logprobs") and not like.tells_logprobs:
            return self._send(400, {"error": "no logprobs here"})
        if like.cache == "strict" and not body.keys().isdisjoint(("cache_salt", "cache_prompt")):
            return self._send(400, {"error": "what field is this?"})
        is_chat = "messages" in body
        prompt = body["messages"][0]["content"] if is_chat else body["prompt"]
        drawn = body["temperature"] > 0 and like.heeds_seed
        seed = body.get("seed", number) if drawn else None
        tokens = answer_of(prompt, seed, body["max_tokens"])
        if len(tokens) > 3 and (like.noise == "always" or (like.noise == "load" and is_loaded)):
            tokens[3] = f" noise{number}"
        values = [-0.5 - i / 8 for i in range(len(tokens))]
        if like.noise == "number":
            values[0] -= number * 2.0**-20
        told = bool(body.get("logprobs"))
        if not body.get("stream"):
            choices = [_choice(is_chat, "message", tokens, values, told, "length")]
            return self._send(200, {"choices": choices, **self._tell_cache(body, prompt)})
        events = [_choice(is_chat, "delta", [t], [v], told, None) for t, v in zip(tokens, values, strict=True)]
        events.append(_choice(is_chat, "delta", [], [], False, "length"))
        lines = [f"data: {json.dumps({'choices': [event]})}\n\n" for event in events]
        return self._send_raw(200, "text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())

    def _tell_cache(self, body: dict[str, Any], prompt: str) -> dict[str, Any]:
        """The usage of an answer."""
        cache = self.behaviour.cache
        if cache == "untold":
            return {}
        salt = body.get("cache_salt") if cache == "cache_salt" else None
        is_off = cache == "none" or (cache == "cache_prompt" and body.get("cache_prompt") is False)
        shared = [common_length(prompt, old) for key, old in self.kept if key == salt and not is_off]
        self.kept.append((salt, prompt))
        return {"usage": {"prompt_tokens_details": {"cached_tokens": max(shared, default=0)}}}

    def _send(self, status: int, value: object) -> None:
        self._send_raw(status, "application/json", json.dumps(value).encode())

    def _send_raw(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _choice(
    is_chat: bool, part: str, tokens: list[str], values: list[float], told: bool, reason: str | None
) -> dict[str, Any]:
    text = "".join(tokens)
    entries = [{"token": t, "logprob": v} for t, v in zip(tokens, values, strict=True)]
    shape = {"content": entries} if is_chat else {"tokens": tokens, "token_logprobs": values}
    body: dict[str, Any] = {part: {"content": text}} if is_chat else {"text": text}
    return {"index": 0, **body, "logprobs": shape if told else None, "finish_reason": reason}


class Server(ThreadingHTTPServer):
    """Ends its connections when it closes: a client that keeps one open must not be answered any more."""

    daemon_threads = False
    request_queue_size = 128  # a wave's connections all wait here; one that finds no room comes late

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self._open: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def server_close(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


def expect(count: int) -> None:
    """So many requests are about to come at once."""
    Handler.wave = threading.Barrier(count)


@contextmanager
def serve(behaviour: Behaviour) -> Iterator[str]:
    """The URL of a server that behaves so."""
    expect(1)
    members = {"behaviour": behaviour, "counter": itertools.count(1), "kept": []}
    server = Server(type("ToyHandler", (Handler,), members))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
