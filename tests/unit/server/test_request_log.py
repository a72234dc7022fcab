"""The request log on a disk that is full: what is lost is told, and no line is glued to another."""

from __future__ import annotations

import json
import logging
import resource
from pathlib import Path

import pytest

from exactlm.errors import ConfigError
from exactlm.server.exchange import Exchange
from exactlm.server.request_log import RequestLog


def test_a_cut_line_spoils_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path)
    exchanges = [Exchange("/v1/completions", "cmpl-") for _ in range(4)]
    log.write(exchanges[0], "m", "f")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.ERROR, "exactlm.server"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
        try:
            log.write(exchanges[1], "m", "f")
            log.write(exchanges[2], "m", "f")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write(exchanges[3], "m", "f")
    log.close()
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert len(lines[1]) == 40
    assert [json.loads(lines[i])["id"] for i in (0, 2)] == [exchanges[0].id, exchanges[3].id]
    assert [word in message for word, message in zip(("cut", "lost"), caplog.messages, strict=True)] == [True, True]


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no/log"):
        RequestLog(tmp_path / "no" / "log")
