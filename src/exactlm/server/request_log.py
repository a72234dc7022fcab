"""The request log: one line of JSON for each request, written when its response has ended, however it ended.

A line is one write at the end of the file: it survives kill -9, and several servers may share a file. What is said -
prompts, answers, what parameters or messages of errors may quote of them - is left out unless asked for.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from exactlm.engine.sampling_params import SamplingParams
from exactlm.errors import ConfigError
from exactlm.proof.ledger_entry import TELLING
from exactlm.server.exchange import Exchange
from exactlm.server.summary import make_extension, make_timings, make_usage

_LOG = logging.getLogger("exactlm.server")
_DEFAULTS = asdict(SamplingParams())


class RequestLog:
    """Appends to `path`. `has_text`: also what is said. ConfigError if it cannot be opened."""

    def __init__(self, path: str | Path, has_text: bool = False) -> None:
        self._has_text = has_text
        self._is_torn = False  # the last line of ours lacks its end
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"request log {path}: cannot be written: {error.strerror}") from None
        self._path = path

    def write(self, exchange: Exchange, model: str, fingerprint: str) -> None:
        """One line. A full disk costs the line, not the answer and not the next line."""
        line = json.dumps(self._describe(exchange, model, fingerprint), allow_nan=False) + "\n"
        data = ("\n" * self._is_torn + line).encode("ascii")
        try:
            count = os.write(self._file, data)
        except OSError as error:
            _LOG.error("request log %s: a line is lost: %s", self._path, error.strerror)
            return
        self._is_torn = count < len(data)
        if self._is_torn:
            _LOG.error("request log %s: a line is cut: %d of its %d bytes were written", self._path, count, len(data))

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def _describe(self, exchange: Exchange, model: str, fingerprint: str) -> dict[str, Any]:
        is_whole = bool(exchange.outputs)
        entry: dict[str, Any] = {
            "id": exchange.id,
            "time": datetime.fromtimestamp(exchange.created, timezone.utc).isoformat(),
            "endpoint": exchange.endpoint,
            "status": exchange.status,
            "error": self._describe_error(exchange),
            "stream": exchange.is_streaming,
            "model": model,
            "fingerprint": fingerprint,
            "params": self._list_params(exchange.params),
            "finish_reasons": [a.finish_reason for output in exchange.outputs for a in output.outputs],
            "usage": make_usage(exchange) if is_whole else None,
        }
        empty: dict[str, Any] = {"digests": [], "seed": None, "timings": make_timings(exchange)}
        entry["exactlm"] = make_extension(exchange) if is_whole else empty
        if self._has_text:
            entry["request"] = exchange.body
            entry["texts"] = [a.text for output in exchange.outputs for a in output.outputs]
        return entry

    def _describe_error(self, exchange: Exchange) -> dict[str, Any] | None:
        if exchange.error is None:
            return None
        # A message quotes the value that it complains of.
        return {name: v for name, v in exchange.error.detail.items() if self._has_text or name != "message"}

    def _list_params(self, params: SamplingParams | None) -> dict[str, Any] | None:
        """What differs from the defaults."""
        if params is None:
            return None
        told = {name: value for name, value in asdict(params).items() if value != _DEFAULTS[name]}
        return {name: value for name, value in told.items() if self._has_text or name not in TELLING}
