"""The records of one benchmark on one engine: a JSON line for each answer, kept so that a run can be ended at any
moment and go on later. Knows nothing of what the records say."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from exactlm.errors import ConfigError

Record = dict[str, Any]


class Journal:
    """A header line that says what was asked of whom, then records, each under its (condition, item).

    Opening continues what stands in the file; a last line that was cut short is dropped. ConfigError where the file is
    of another run or cannot be read or written.
    """

    def __init__(self, path: Path, header: Record) -> None:
        self.path = path
        self.records: dict[tuple[str, str], Record] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be opened: {error.strerror}; give another --out") from None
        try:
            self._read(header)
        except BaseException:
            self._file.close()
            raise

    def _read(self, header: Record) -> None:
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            known = set().union(*(line.keys() for line in lines[:1]))
            for record in lines[1:]:
                self.records[record["condition"], record["item"]] = record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.path}: not the records of a benchmark ({error!r:.100}); move it away") from None
        if lines and lines[0] != header:
            keys = sorted(key for key in known | header.keys() if lines[0].get(key) != header.get(key))
            raise ConfigError(
                f"{self.path}: holds another run (its {', '.join(keys)} differ); give another --out or move it away"
            )
        self._file.truncate(len(whole))
        if not lines:
            self.add([header])

    def add(self, records: Iterable[Record]) -> None:
        """Appends records; they are on disk when this returns."""
        fresh = list(records)
        self._file.write(b"".join(json.dumps(r).encode() + b"\n" for r in fresh))
        self._file.flush()
        os.fsync(self._file.fileno())
        for record in fresh:
            if "item" in record:
                self.records[record["condition"], record["item"]] = record

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
