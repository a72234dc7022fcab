"""The records of one benchmark on one engine: a JSON line for each answer, each under its (condition, item). Knows
nothing else of what the records say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from exactlm.errors import ConfigError
from exactlm.journal import JournalFile

Record = dict[str, Any]


class Journal:
    """header: what was asked of whom; a file under another one is refused. records: the last one of each (condition,
    item). ConfigError as JournalFile."""

    def __init__(self, path: Path, header: Record) -> None:
        self._file = JournalFile(path, header, "give another --out or move it away")
        try:
            self.records = {(line["condition"], line["item"]): line for line in self._file.lines}
        except (KeyError, TypeError) as error:
            self._file.close()
            raise self._file.refuse(f"holds what is no record of a benchmark ({error!r:.100})") from None

    def refuse(self, reason: str) -> ConfigError:
        """An error that names the file, and says what to do about it."""
        return self._file.refuse(reason)

    def add(self, records: Iterable[Record]) -> None:
        """Appends records; they are on disk when this returns."""
        fresh = list(records)
        self._file.append(fresh)
        self.records |= {(record["condition"], record["item"]): record for record in fresh}

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
