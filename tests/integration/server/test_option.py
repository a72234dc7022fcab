"""Wrong options end the command with status 2 and a reason, before a model is read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from exactlm.cli import main


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--port", "70000"), "port 70000"),
        (("--port", "-1"), "port -1"),
        (("--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("--max-batch", "0"), "max_batch"),
        (("--chunk-tokens", "0"), "chunk_tokens"),
        (("--kv-tokens", "1"), "kv_tokens"),
        (("--warmup", "-1"), "warmup"),
        (("--max-waiting", "-1"), "max_waiting"),
        (("--max-body-bytes", "0"), "max_body_bytes"),
        (("--request-seconds", "nan"), "request_seconds"),
        (("--read-seconds", "inf"), "read_seconds"),
        (("--grace-seconds", "-1"), "grace_seconds"),
        (("--api-key", ""), "API key"),
        (("--api-key-file", "no/such/file"), "no/such/file"),
        (("--request-log", "no/such/folder/log"), "no/such/folder/log"),
        (("--log-text",), "--request-log"),
        (("--model-name", ""), "--model-name"),
        (("--threads", "0"), "threads"),
        (("--isa", "sse1"), "sse1"),
    ],
)
def test_wrong_options_are_told(
    served_model: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], reason: str
) -> None:
    assert main(["serve", str(served_model), "--port", "0", *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("exactlm serve: ")
    assert reason in told.err


def test_an_empty_key_in_the_environment_is_told(
    served_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXACTLM_API_KEY", "")
    assert main(["serve", str(served_model), "--port", "0"]) == 2
    assert "API key" in capsys.readouterr().err


def test_a_model_that_is_none_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(served_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", str(served_model), "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err
