"""A file of JSON lines under a header: what a long run has found, kept so that the run can end at any moment and go on
later. Knows nothing of what the lines say."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from exactlm.errors import ConfigError

Line = dict[str, Any]


class JournalFile:
    """A header line that says what was asked of whom, then lines. Opening goes on with what stands in the file; a last
    line that was cut short is dropped.

    lines: those that were there, without the header. advice: what to do about a file that cannot go on. is_fresh: drop
    what stands in it. ConfigError where the file is of another run, is being written by one, holds something else, or
    cannot be opened.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], advice: str, is_fresh: bool = False) -> None:
        self.path, self._advice = path, advice
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise self.refuse(f"cannot be written ({error.strerror})") from None
        try:
            self._lock()
            if is_fresh:
                self._file.truncate(0)
            self.lines = self._read(json.loads(json.dumps(dict(header))))
        except BaseException:
            self._file.close()
            raise

    def refuse(self, reason: str) -> ConfigError:
        """An error that names the file, and says what to do about it."""
        return ConfigError(f"{self.path}: {reason}: {self._advice}")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Appends lines; they are on disk when this returns."""
        self._file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> JournalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lock(self) -> None:
        """Two runs that wrote one file would ask everything twice, and each would miss what the other found."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self.refuse("another run is writing it") from None
        except OSError:  # some network file systems have no locks
            pass

    def _read(self, header: Line) -> list[Line]:
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and not (json.dumps(header) + "\n").encode().startswith(data):
            raise self.refuse("is no record of a run")  # it may be somebody's only copy
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, RecursionError) as error:
            raise self.refuse(f"is no record of a run ({error!r:.100})") from None
        if not all(isinstance(line, dict) for line in lines):
            raise self.refuse("is no record of a run (a line is no object)")
        if lines and lines[0] != header:
            found = lines[0]
            keys = sorted(key for key in found.keys() | header.keys() if found.get(key) != header.get(key))
            raise self.refuse(f"is of another run ({', '.join(keys)} differ)")
        self._file.truncate(len(whole))
        if not lines:
            self.append([header])
        return lines[1:]
