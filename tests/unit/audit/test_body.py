"""Whatever a server sends, reading it ends, and becomes an answer or an error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exactlm.audit import body
from exactlm.audit.condition import Shot
from exactlm.audit.endpoint import EndpointTarget
from exactlm.audit.target import Answer
from exactlm.errors import ConfigError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
WHOLE = b'{"choices":[{"text":"a","finish_reason":"stop"}]}'


@contextmanager
def raw_server(pieces: list[bytes], pause: float = 0.0) -> Iterator[str]:
    """A server that answers every request with these bytes, with a pause after each, the last one again and again if
    there is a pause; asked without a list of models."""

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                asked = b""
                while b'"max_tokens"' not in asked and not asked.startswith(b"GET"):
                    asked += connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(pause)
                while pause:
                    connection.sendall(pieces[-1])
                    time.sleep(pause)
            except OSError:
                pass

    def work() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def sent(content: bytes, head: bytes = HEAD) -> list[bytes]:
    return [head + b"Content-Length: %d\r\n\r\n" % len(content) + content]


def ask(pieces: list[bytes], is_streamed: bool = False, pause: float = 0.0, timeout: float = 5.0) -> Answer:
    """The answer to one request; the probes before it are not asked."""
    with raw_server(pieces, pause) as url:
        target = EndpointTarget.__new__(EndpointTarget)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EndpointTarget, "_probe", lambda self: None)
            target.__init__(url, "m", timeout=timeout)  # type: ignore[misc]
        (answer,) = target.fire((Shot("x", 0, 5, is_streamed=is_streamed),))
        target.close()
    return answer


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_server_that_drips_is_left_in_time(is_streamed: bool) -> None:
    """Each read is in time, the response never."""
    begin = time.monotonic()
    answer = ask([HEAD + b"\r\n", b": still here\n\n"], is_streamed, pause=0.05, timeout=0.5)
    assert answer.error == "timeout: ReadTimeout"
    assert time.monotonic() - begin < 4


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_response_without_end_is_left(monkeypatch: pytest.MonkeyPatch, is_streamed: bool) -> None:
    monkeypatch.setattr(body, "MAX_BYTES", 10**5)
    answer = ask([HEAD + b"\r\n", b'data: {"choices":[{"text":"a"}]}\n\n' * 5000], is_streamed)
    assert answer.error is not None
    assert "longer than 100000 bytes" in answer.error


@pytest.mark.parametrize("is_streamed", [False, True])
def test_deep_json_is_an_error(is_streamed: bool) -> None:
    answer = ask(sent(b"data: " * is_streamed + b"[" * 100_000 + b"\n"), is_streamed)
    assert answer.error is not None
    assert "nested too deeply" in answer.error


def test_a_deep_list_of_models_is_an_error() -> None:
    with raw_server(sent(b"[" * 100_000)) as url, pytest.raises(ConfigError, match="no list of models"):
        EndpointTarget(url)


def test_an_odd_character_set_is_no_crash() -> None:
    head = HEAD.replace(b"200 OK", b"500 Oh").replace(b"text/event-stream", b"text/plain; charset=rot13")
    assert ask(sent(b"b\xffm", head)).error == "status 500: b\ufffdm"


def test_a_stream_is_cut_at_newlines_alone() -> None:
    event = '{"choices":[{"text":"a\u2028\u0085b","finish_reason":"stop"}]}'
    answer = ask(sent(f"data: {event}\r\n\r\ndata: [DONE]".encode()), is_streamed=True)
    assert (answer.error, answer.text) == (None, "a\u2028\u0085b")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1" + "0" * 400, "1e307"])
def test_a_number_that_is_no_log_probability_is_none(number: str) -> None:
    told = b',"logprobs":{"tokens":["a","b"],"token_logprobs":[%s,-0.5]}}]}' % number.encode()
    answer = ask(sent(WHOLE.replace(b"}]}", told)))
    assert (answer.error, answer.logprobs) == (None, [None, -0.5])
