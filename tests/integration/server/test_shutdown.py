"""The end of a server: in order at the first signal, at once at the second; streams are finished or told."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.process import COMPLETION, LASTING, SLOW, ServerProcess, read_reply

LONG = {"prompt": "the thing", "max_tokens": 200, "ignore_eos": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_answers_under_way_are_finished(served_model: Path, llm: LLM, number: signal.Signals) -> None:
    expected = llm.generate([LONG["prompt"]], SamplingParams(max_tokens=60, ignore_eos=True))[0].outputs[0]
    with ServerProcess(served_model, *SLOW) as running, closing(running.connect()) as idle:
        idle.request("GET", "/health")
        idle.getresponse().read()
        with running.open_stream(COMPLETION, {**LONG, "max_tokens": 60}) as lines:
            seen = [next(lines)]
            running.process.send_signal(number)
            seen += list(lines)
        assert expected.digest.encode() in b"".join(seen)
        assert seen[-2:] == [b"data: [DONE]\n", b"\n"]
        assert running.wait() == 0
        with pytest.raises(OSError):
            socket.create_connection((running.host, running.port), timeout=1)
    assert "Traceback" not in running.output


def test_answers_that_take_too_long_are_ended(lasting_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    options = (*SLOW, "--grace-seconds", "0.5", "--request-log", str(log))
    with ServerProcess(lasting_model, *options) as running, closing(running.connect()) as waiting:
        waiting.request("POST", COMPLETION, json.dumps(LASTING), {"Content-Type": "application/json"})
        with running.open_stream(COMPLETION, LASTING) as lines:
            seen = [next(lines)]
            begin = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            seen += list(lines)
        told = read_reply(waiting)
        assert (told.status, told.error["code"]) == (503, "shutting_down")
        assert running.wait() == 0
        assert time.monotonic() - begin > 0.4
    assert b"shutting_down" in seen[-4]
    assert seen[-2] == b"data: [DONE]\n"
    assert [json.loads(line)["status"] for line in log.read_text().splitlines()] == [503, 503]


def test_requests_that_arrive_meanwhile_are_turned_away(served_model: Path) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += b"content-length: " + str(len(body)).encode() + b"\r\n\r\n"
    long = {**LONG, "max_tokens": 450}
    with ServerProcess(served_model, *SLOW, "--grace-seconds", "600") as running:
        address = running.host, running.port
        with running.open_stream(COMPLETION, long) as lines, socket.create_connection(address) as pipelined:
            next(lines)
            # Two requests on one connection: the second is begun when the first has its answer.
            first = json.dumps(long).encode()
            pipelined.sendall(head.replace(str(len(body)).encode(), str(len(first)).encode()) + first + head + body)
            running.wait_for_metric("exactlm_open_requests", 2)
            running.process.send_signal(signal.SIGTERM)
            seen = b""
            while part := pipelined.recv(65536):
                seen += part
        assert seen.count(b"HTTP/1.1 200") == 1
        assert seen.count(b"HTTP/1.1 503") == 1
        assert running.wait() == 0


def test_a_second_signal_ends_it_at_once(lasting_model: Path) -> None:
    options = (*SLOW, "--grace-seconds", "600")  # more than we wait
    with ServerProcess(lasting_model, *options) as running, running.open_stream(COMPLETION, LASTING) as lines:
        next(lines)
        running.process.send_signal(signal.SIGTERM)
        running.wait_for_output("stopping")
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 128 + signal.SIGTERM
