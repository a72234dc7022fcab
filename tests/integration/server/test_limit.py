"""Limits: size, queue, time, keys, and connections that send nothing; each told with its status."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.server.process import COMPLETION, LASTING, SLOW, ServerProcess, wait_for


@pytest.fixture(scope="module")
def narrow(lasting_model: Path) -> Iterator[ServerProcess]:
    """Room for five answers, 64 KiB for a request; as much time as a busy machine may need."""
    options = ("--max-batch", "2", "--max-waiting", "3", "--max-body-bytes", "65536")
    with ServerProcess(lasting_model, *SLOW, *options, "--cors-origin", "https://a.example") as running:
        yield running


@pytest.fixture(scope="module")
def hasty(lasting_model: Path) -> Iterator[ServerProcess]:
    """Two seconds for an answer, half a second to send a request."""
    with ServerProcess(lasting_model, *SLOW, "--request-seconds", "2", "--read-seconds", "0.5") as running:
        yield running


def test_bodies_have_a_size(narrow: ServerProcess) -> None:
    fitting = json.dumps({"prompt": "a", "max_tokens": 1, "user": ""}).encode()
    for size, status in ((65536, 200), (65537, 413), (300_000, 413), (3_000_000, 413)):
        body = fitting.replace(b'"user": ""', b'"user": "' + b"x" * (size - len(fitting)) + b'"')
        assert len(body) == size
        reply = narrow.post(COMPLETION, body)
        assert reply.status == status
    assert "65536" in reply.error["message"]
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    assert b" 413 " in narrow.talk(chunked + chunk * 3 + b"0\r\n\r\n")


def test_a_full_queue_says_when_to_come_again(narrow: ServerProcess) -> None:
    with closing(narrow.connect()) as first, closing(narrow.connect()) as second:
        for connection, count in ((first, 2), (second, 3)):
            body = json.dumps({**LASTING, "n": count})
            connection.request("POST", COMPLETION, body, {"Content-Type": "application/json"})
        names = ("exactlm_running_sequences", "exactlm_queue_length")
        wait_for(lambda: sum(narrow.metric(name) for name in names) >= 5)
        reply = narrow.post(COMPLETION, {"prompt": "a", "max_tokens": 1})
        assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (429, "queue_full", "1")
        assert narrow.get("/health").status == 200
    narrow.wait_until_idle()
    assert narrow.post(COMPLETION, {"prompt": "a", "max_tokens": 1, "n": 5}).status == 200
    never = narrow.post(COMPLETION, {"prompt": ["a"] * 6, "max_tokens": 1})
    assert (never.status, never.error["param"]) == (400, "n")


def test_a_request_has_its_time(hasty: ServerProcess) -> None:
    with ThreadPoolExecutor(2) as pool:
        begin = time.monotonic()
        whole = pool.submit(hasty.post, COMPLETION, LASTING)
        stream = pool.submit(hasty.stream, COMPLETION, LASTING)
        assert (whole.result().status, whole.result().error["code"]) == (408, "request_timeout")
        events = stream.result().events
        assert time.monotonic() - begin >= 2
    assert events[-1]["error"]["code"] == "request_timeout"
    assert sum(bool(choice["text"]) for event in events[:-1] for choice in event["choices"]) > 2
    hasty.wait_until_idle()


def test_slow_senders_are_cut_off(hasty: ServerProcess) -> None:
    assert b" 408 " in hasty.talk(b"POST /v1/comp")
    assert b" 408 " in hasty.talk(b"")
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    told = hasty.talk(head)
    assert b" 408 " in told
    assert b"the body did not arrive within 0.5 seconds" in told
    assert b" 431 " in hasty.talk(b"GET /health HTTP/1.1\r\nx: " + b"y" * 100_000)


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
)
def test_what_is_no_request_is_refused_in_json(hasty: ServerProcess, data: bytes) -> None:
    head, _, body = hasty.talk(data).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 408"))
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_only_the_named_origin_is_let_in(narrow: ServerProcess, server: ServerProcess) -> None:
    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    allowed = narrow.get(COMPLETION, asked, method="OPTIONS")
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://a.example")
    other = narrow.get("/health", {"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in server.get("/health", asked).headers
    assert server.get(COMPLETION, asked, method="OPTIONS").status == 405


def test_keys_are_asked_for(served_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# staff\nbeta\n")
    options = ("--api-key", "alpha", "--api-key-file", str(keys))
    with ServerProcess(served_model, *options, "--warmup", "0", EXACTLM_API_KEY="gamma") as guarded:
        for key, status in (("alpha", 200), ("beta", 200), ("gamma", 200), ("delta", 401), ("", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert guarded.post(COMPLETION, {"prompt": "a", "max_tokens": 1}, headers).status == status
        for path in ("/v1/models", "/metrics"):
            refused = guarded.get(path)
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert refused.error["code"] == "invalid_api_key"
            assert guarded.get(path, {"Authorization": "Bearer beta"}).status == 200
        assert guarded.post(COMPLETION, b"not even JSON").status == 401
        assert guarded.post("/nowhere", {}).status == 401
        for path in ("/health", "/ready", "/openapi.json"):
            assert guarded.get(path).status == 200
        assert "alpha" not in guarded.output
