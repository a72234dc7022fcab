"""The request log: one line for each request, however it ended, without a word of what was said unless told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.server.process import CHAT, COMPLETION, ServerProcess

SECRET = "qzxqzx"


def read(path: Path, server: ServerProcess) -> list[dict[str, Any]]:
    """The lines; the last is written just after its response has come."""
    server.wait_until_idle()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_say_what_responses_say(server: ServerProcess, request_log: Path) -> None:
    body = {"prompt": ["the", SECRET], "max_tokens": 5, "temperature": 1.0, "n": 2, "stop": ["zz"]}
    messages = [{"role": "user", "content": SECRET}]
    told = [
        server.post(COMPLETION, body).json,
        server.stream(COMPLETION, body).events[-1],
        server.post(CHAT, {"messages": messages, "max_tokens": 3}).json,
    ]
    lines = read(request_log, server)[-3:]
    for line, response in zip(lines, told, strict=True):
        assert line["exactlm"] == response["exactlm"]
        assert (line["id"], line["status"], line["error"]) == (response["id"], 200, None)
        assert line["fingerprint"] == response["system_fingerprint"]
    assert lines[0]["usage"] == told[0]["usage"]
    assert [line["stream"] for line in lines] == [False, True, False]
    assert lines[0]["params"]["seed"] == told[0]["exactlm"]["seed"]
    assert [line["endpoint"] for line in lines] == [COMPLETION, COMPLETION, CHAT]
    assert SECRET not in request_log.read_text()


def test_refused_requests_have_their_line(server: ServerProcess, request_log: Path) -> None:
    server.post(COMPLETION, {"prompt": "a", "temperature": -1})
    server.post(COMPLETION, b"not JSON")
    lines = read(request_log, server)[-2:]
    assert [(line["status"], line["error"]["param"]) for line in lines] == [(400, "temperature"), (400, None)]
    assert all(line["exactlm"]["digests"] == [] for line in lines)


def test_texts_are_written_when_asked_for(served_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with ServerProcess(served_model, "--request-log", str(log), "--log-text", "--model-name", "other/name") as running:
        told = running.post(COMPLETION, {"prompt": SECRET, "max_tokens": 4, "model": "other/name"}).json
        assert running.get("/v1/models/other/name").status == 200
        assert running.post(COMPLETION, {"prompt": SECRET, "model": "tiny"}).status == 404
        first, second = read(log, running)
    assert first["request"]["prompt"] == SECRET
    assert first["texts"] == [choice["text"] for choice in told["choices"]]
    assert first["model"] == told["model"] == "other/name"
    assert "tiny" in second["error"]["message"]
    assert log.stat().st_mode & 0o077 == 0


def test_what_parameters_and_errors_quote_is_not_written(server: ServerProcess, request_log: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": SECRET}}}
    told = [
        {"stop": [SECRET], "logit_bias": {"7": 1.5}, "stop_token_ids": [9], "temperature": 0.5},
        {"regex": SECRET},
        {"grammar": f'start: "{SECRET}"'},
        {"response_format": schema},
    ]
    for fields in told:
        assert server.post(COMPLETION, {"prompt": "a", "max_tokens": 2, **fields}).status == 200
    refused = server.post(COMPLETION, {"prompt": "a", "stop": [SECRET, ""]})
    also_refused = server.post(CHAT, {"messages": [{"role": SECRET, "content": "a"}]})
    assert SECRET in also_refused.error["message"]
    lines = read(request_log, server)[-6:]
    assert set(lines[0]["params"]) == {"max_tokens", "temperature", "seed"}
    for line, reply in zip(lines[-2:], (refused, also_refused), strict=True):
        assert line["error"] == {name: reply.error[name] for name in ("type", "param", "code")}
    assert SECRET not in request_log.read_text()
