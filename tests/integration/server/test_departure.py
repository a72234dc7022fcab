"""Clients that leave: while they wait, during prefill, during decode, streaming or not; nothing is left behind."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.process import COMPLETION, ServerProcess

STAYING = {"prompt": "the other thing", "max_tokens": 60, "ignore_eos": True, "temperature": 1.0, "seed": 3}
SENT = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("departure") / "log.jsonl"


@pytest.fixture(scope="module")
def slow(served_model: Path, log: Path) -> Iterator[ServerProcess]:
    """One answer at a time, in steps of 8 tokens: requests wait, and prefill takes several steps."""
    options = ("--isa", "reference", "--max-batch", "1", "--chunk-tokens", "8", "--warmup", "0")
    with ServerProcess(served_model, *options, "--request-log", str(log)) as running:
        yield running


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("moment", ["waiting", "prefill", "decode"])
def test_departures_free_everything(slow: ServerProcess, llm: LLM, log: Path, moment: str, is_streaming: bool) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True, temperature=1.0, seed=3)
    expected = llm.generate([STAYING["prompt"]], params)[0].outputs[0]
    prompt = "the thing " * 40 if moment != "decode" else "the"
    body = json.dumps({"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "n": 2, "stream": is_streaming})
    with ExitStack() as stack:
        lines = stack.enter_context(slow.open_stream(COMPLETION, STAYING)) if moment == "waiting" else None
        with closing(slow.connect()) as leaving:
            leaving.request("POST", COMPLETION, body, SENT)
            wait_for(slow, *(("exactlm_queue_length", 2) if moment == "waiting" else ("exactlm_kv_pages_used", 1)))
        if lines is not None:
            assert expected.digest.encode() in b"".join(lines)
    slow.wait_until_idle()
    statuses = [json.loads(line)["status"] for line in log.read_text().splitlines()]
    assert sorted(statuses[-2 if lines is not None else -1 :]) == ([200, 499] if lines is not None else [499])
    assert slow.post(COMPLETION, STAYING).json["exactlm"]["digests"] == [expected.digest]


def test_leaving_before_the_body_is_complete_is_no_error(slow: ServerProcess) -> None:
    with closing(slow.connect()) as leaving:
        leaving.putrequest("POST", COMPLETION)
        for name, value in {**SENT, "Content-Length": "1000"}.items():
            leaving.putheader(name, value)
        leaving.endheaders(b'{"prompt": ')
    slow.wait_until_idle()
    assert "Traceback" not in slow.output


def test_the_first_of_two_requests_on_a_connection_ends_with_it(slow: ServerProcess) -> None:
    body = json.dumps({"prompt": "the", "max_tokens": 480, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    steps = slow.metric("exactlm_steps_total")
    with socket.create_connection((slow.host, slow.port)) as leaving:
        leaving.sendall(request + request)
        wait_for(slow, "exactlm_kv_pages_used", 1)
    slow.wait_until_idle()
    assert slow.metric("exactlm_steps_total") - steps < 300


def wait_for(server: ServerProcess, name: str, value: float) -> None:
    while server.metric(name) < value:
        assert server.process.poll() is None
