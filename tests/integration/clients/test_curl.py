"""curl, as in the documentation: a whole answer, a stream, and a refusal."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from exactlm import LLM, SamplingParams
from tests.integration.server.process import ServerProcess

BODY = {"prompt": "the thing", "max_tokens": 12, "temperature": 0.7, "seed": 2}


def run_curl(*arguments: str, body: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    command = ["curl", "-sS", "--noproxy", "*", *arguments]
    return subprocess.run(command, input=body, check=True, capture_output=True, text=True).stdout


def post(server: ServerProcess, body: dict[str, object], *arguments: str) -> str:
    header = "Content-Type: application/json"
    url = f"{server.url}/v1/completions"
    return run_curl(*arguments, "-H", header, "--data-binary", "@-", url, body=json.dumps(body))


def test_a_whole_answer_and_a_stream(server: ServerProcess, tiny_llm: LLM) -> None:
    expected = tiny_llm.generate("the thing", SamplingParams(max_tokens=12, temperature=0.7, seed=2))[0].outputs[0]
    whole = json.loads(post(server, BODY))
    assert whole["choices"][0]["text"] == expected.text
    assert whole["exactlm"]["digests"] == [expected.digest]
    lines = post(server, {**BODY, "stream": True}, "-N").splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event) for event in events[:-1]]
    assert "".join(choice["text"] for piece in pieces for choice in piece["choices"]) == expected.text
    assert pieces[-1]["exactlm"]["digests"] == [expected.digest]


def test_a_refusal_has_a_status_and_a_reason(server: ServerProcess) -> None:
    answer = post(server, {**BODY, "temperature": "hot"}, "-w", "\n%{http_code}")
    text, status = answer.rsplit("\n", 1)
    assert status == "400"
    assert json.loads(text)["error"]["param"] == "temperature"


def test_a_body_that_waits_for_leave_is_read(server: ServerProcess) -> None:
    """curl asks before it sends more than a megabyte: Expect: 100-continue."""
    body = {**BODY, "user": "u" * (1 << 20)}
    assert json.loads(post(server, body, "-H", "Expect: 100-continue"))["choices"]
