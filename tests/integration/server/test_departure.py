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

STAYING = {"prompt": "the other thing", "max_tokens": 400, "ignore_eos": True, "temperature": 1.0, "seed": 3}
SENT = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("departure") / "log.jsonl"


@pytest.fixture(scope="module")
def slow(lasting_model: Path, log: Path) -> Iterator[ServerProcess]:
    """One answer at a time, in steps of 8 tokens: requests wait, prefill takes several steps, and no answer to those
    who leave is over before they do."""
    options = ("--isa", "reference", "--max-batch", "1", "--chunk-tokens", "8", "--warmup", "0")
    with ServerProcess(lasting_model, *options, "--request-log", str(log)) as running:
        yield running


@pytest.fixture(scope="module")
def digest(lasting_model: Path) -> str:
    """Of the answer to STAYING."""
    params = SamplingParams(max_tokens=400, ignore_eos=True, temperature=1.0, seed=3)
    return LLM(lasting_model, threads=1).generate([STAYING["prompt"]], params)[0].outputs[0].digest


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("moment", ["waiting", "prefill", "decode"])
def test_departures_free_everything(
    slow: ServerProcess, digest: str, log: Path, moment: str, is_streaming: bool
) -> None:
    prompt = "the thing " * 40 if moment != "decode" else "the"
    body = json.dumps({"prompt": prompt, "max_tokens": 7000, "ignore_eos": True, "n": 2, "stream": is_streaming})
    with ExitStack() as stack:
        lines = stack.enter_context(slow.open_stream(COMPLETION, STAYING)) if moment == "waiting" else None
        with closing(slow.connect()) as leaving:
            leaving.request("POST", COMPLETION, body, SENT)
            slow.wait_for_metric(*(("exactlm_queue_length", 2) if lines is not None else ("exactlm_kv_pages_used", 1)))
        if lines is not None:
            assert digest.encode() in b"".join(lines)
    slow.wait_until_idle()
    statuses = [json.loads(line)["status"] for line in log.read_text().splitlines()]
    assert sorted(statuses[-2 if lines is not None else -1 :]) == ([200, 499] if lines is not None else [499])
    assert slow.post(COMPLETION, STAYING).json["exactlm"]["digests"] == [digest]


def test_leaving_before_the_body_is_complete_is_no_error(slow: ServerProcess) -> None:
    with closing(slow.connect()) as leaving:
        leaving.putrequest("POST", COMPLETION)
        for name, value in {**SENT, "Content-Length": "1000"}.items():
            leaving.putheader(name, value)
        leaving.endheaders(b'{"prompt": ')
    slow.wait_until_idle()
    assert "Traceback" not in slow.output


def test_the_first_of_two_requests_on_a_connection_ends_with_it(slow: ServerProcess) -> None:
    body = json.dumps({"prompt": "the", "max_tokens": 7000, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    steps = slow.metric("exactlm_steps_total")
    with socket.create_connection((slow.host, slow.port)) as leaving:
        leaving.sendall(request + request)
        slow.wait_for_metric("exactlm_kv_pages_used", 1)
    slow.wait_until_idle()
    assert slow.metric("exactlm_steps_total") - steps < 7000
